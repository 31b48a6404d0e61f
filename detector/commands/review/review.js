"use strict";
// The page of a review. Boxes are x1, y1, x2, y2 in pixels of the image file. What files say is set as text, never as HTML.
const review = JSON.parse(document.getElementById("data").textContent);
const { suspects, images, names, kinds, crops } = review;
const STORE = `boltbox review ${review.id}`;
const ROOT = review.dataset.dataset.replace(/[^/\\]*$/, ""); // which paths on the page leave out
const AROUND = 2.2; // what the stage shows at first, over the size of the suspect
const CLOSEST = 40; // maximum pixels of the screen per pixel of the file
const CLICK = 4; // pixels of the screen within which a pointer clicks and does not drag
const EDGE = 40; // pixels around the picture
const THUMB = 68; // pixels of a picture in the list
const CORNERS = [[0, 1, "top left"], [2, 1, "top right"], [2, 3, "bottom right"], [0, 3, "bottom left"]];
const VERDICTS = { accepted: "Accepted", rejected: "Rejected", corrected: "Corrected" };
const $ = (id) => document.getElementById(id);
const [stage, list] = [$("stage"), $("list")];
const rows = new Map(); // of the list, by suspect
let decisions = new Map(); // by id of the suspect, the last one at the end: {decision, image, edits: {key of a label: what changes of it}}
let [past, future] = [[], []]; // [decisions, suspect] that undo and redo restore
let [shown, current] = [suspects, suspects[0]]; // those that pass the filters; the one that is looked at
let selected = ""; // key of a box: "3" is label 3, "new ..." an added one, "suggestion" what is suggested
let view = { x: 0, y: 0, scale: 1 }; // point of the file in the middle of the stage; pixels of the screen per pixel of the file
let [drag, draft] = [null, null]; // of a pointer; {key, box} of the box that it moves
let [kept, unsaved] = [true, false]; // the browser keeps the progress; decisions.json lacks something
const same = (a, b) => a.every((value, k) => value === b[k]);
const limit = (value, least, most) => Math.max(least, Math.min(most, value));
const percent = (share) => `${Math.round(limit(share, 0.01, 0.99) * 100)} %`;
const stored = (action) => { try { return action(localStorage); } catch { kept = false; return null; } };
const say = (text) => { $("status").textContent = text; };
function make(tag, attributes = {}, ...content) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...content);
  return node;
}

// Labels: those of the file, and over them what decisions change, in the order of the decisions
const keyOf = (suspect) => (suspect.label === null ? `new ${suspect.id}` : String(suspect.label));
const editsOf = (suspect) => decisions.get(suspect.id)?.edits ?? {};
const verdictOf = (suspect) => decisions.get(suspect.id)?.decision;
function labelsOf(image) {
  const labels = new Map(images[image].labels.map((label, k) => [String(k), { ...label, original: label }]));
  const made = [...decisions.values()].filter((each) => each.image === image);
  for (const [key, change] of made.flatMap(({ edits }) => Object.entries(edits))) labels.set(key, { ...labels.get(key), ...change });
  for (const [key, label] of labels) if (label.deleted && !label.original) labels.delete(key);
  return labels;
}
const isChanged = ({ original, deleted, box, class: index }) => !original || Boolean(deleted) || index !== original.class || !same(box, original.box);
function suggestedEdit({ image, label, suggestion }) { // what changes of its label if a suspect is accepted
  if (!suggestion) return { deleted: true };
  const change = { ...suggestion, deleted: false };
  const original = images[image].labels[label];
  if (original && original.class === suggestion.class) delete change.class;
  if (original && same(original.box, suggestion.box)) delete change.box;
  return change;
}
function effect(suspect) {
  const { box, class: index, deleted } = suggestedEdit(suspect);
  if (deleted) return "delete the label";
  if (suspect.label === null) return `add ${names[index]}`;
  return [box && "move the box", names[index] && `make it ${names[index]}`].filter(Boolean).join(", ") || "keep the label";
}

// Decisions
function decide(decision, edits) {
  [past, future] = [[...past, [decisions, current]], []];
  decisions = new Map(decisions);
  decisions.delete(current.id); // the last decision is at the end
  decisions.set(current.id, { decision, image: current.image, edits });
  keep();
}
function keep() {
  unsaved = true;
  stored((storage) => storage.setItem(STORE, JSON.stringify([...decisions])));
  showDecisions();
}
function load() { // what is kept, which another window with this page may have changed
  decisions = new Map(stored((storage) => JSON.parse(storage.getItem(STORE))) ?? []);
  [past, future] = [[], []];
  showDecisions();
}
function travel(from, to, word) {
  if (!from.length) return;
  to.push([decisions, current]);
  const [before, suspect] = from.pop();
  decisions = before;
  keep();
  go(suspect, word);
}
function judge(decision) {
  const done = decision === "accepted" ? effect(current) : names[current.class];
  const { [keyOf(current)]: _, ...edits } = editsOf(current);
  if (decision === "accepted") edits[keyOf(current)] = suggestedEdit(current);
  decide(decision, edits);
  const next = [...shown.slice(shown.indexOf(current) + 1), ...shown].find((suspect) => !decisions.has(suspect.id));
  go(next ?? current, `${VERDICTS[decision]}: ${done}${next ? "" : ". All suspects in the list are decided: save the decisions"}`);
}
function edit(key, change) {
  const taken = key === "suggestion" && suggestedEdit(current);
  selected = taken ? keyOf(current) : key;
  const { original, box, class: index } = labelsOf(current.image).get(selected) ?? {};
  const start = original ? {} : { box, class: index }; // of an added box all is noted
  const edits = editsOf(current);
  decide("corrected", { ...edits, [selected]: { ...start, ...edits[selected], deleted: false, ...taken, ...change } });
  showSuspect(selected);
}
function removeBox() {
  const key = selected === "suggestion" ? keyOf(current) : selected;
  if (labelsOf(current.image).has(key)) edit(key, { deleted: true });
  else judge("rejected");
}
function addBox() {
  const half = Math.min(...middle()) / view.scale / 3;
  const box = moved([view.x - half, view.y - half, view.x + half, view.y + half], undefined, [0, 0]);
  edit(`new ${current.id} ${Date.now()}`, { box, class: (current.suggestion ?? current).class });
  focusBox();
}
function decisionsFile() {
  const made = suspects.filter((suspect) => decisions.has(suspect.id));
  const file = { version: 1, review: review.id, dataset: review.dataset, names, images: {}, decisions: [], changes: [] };
  for (const suspect of made) file.decisions.push({ suspect: suspect.id, decision: verdictOf(suspect) });
  for (const image of new Set(made.map((suspect) => suspect.image)))
    for (const [key, label] of [...labelsOf(image)].filter((entry) => isChanged(entry[1]))) {
      file.images[images[image].file] = images[image].digest;
      const [box, index] = label.deleted ? [null, null] : [label.box, label.class];
      file.changes.push({ file: images[image].file, label: label.original ? Number(key) : null, box, class: index });
    }
  return file;
}
function save() {
  const file = decisionsFile();
  const href = URL.createObjectURL(new Blob([JSON.stringify(file)], { type: "application/json" }));
  make("a", { href, download: "decisions.json" }).click();
  unsaved = false;
  say(`Saved decisions.json. Decisions: ${file.decisions.length}, labels to change: ${file.changes.length}. Next: review --apply decisions.json --out DIR`);
}

// The stage
const middle = () => [stage.clientWidth / 2, stage.clientHeight / 2];
const toFile = ([x, y]) => [view.x + (x - middle()[0]) / view.scale, view.y + (y - middle()[1]) / view.scale];
const scaleFor = (width, height) => Math.min(stage.clientWidth / Math.max(width, 1), stage.clientHeight / Math.max(height, 1));
function place(node, [x1, y1, x2, y2], { x, y, scale }, [left, top]) {
  const pixels = [(x1 - x) * scale + left, (y1 - y) * scale + top, (x2 - x1) * scale, (y2 - y1) * scale];
  ["left", "top", "width", "height"].forEach((name, k) => { node.style[name] = `${pixels[k]}px`; });
}
function fit() {
  const [a, b] = [current.box, current.suggestion?.box ?? current.box];
  const [x1, y1, x2, y2] = a.map((value, k) => (k < 2 ? Math.min(value, b[k]) : Math.max(value, b[k])));
  view = { x: (x1 + x2) / 2, y: (y1 + y2) / 2, scale: scaleFor((x2 - x1) * AROUND, (y2 - y1) * AROUND) };
  zoom(1);
}
function zoom(factor, point = middle()) { // a point of the stage keeps its place
  const [x1, y1, x2, y2] = crops[current.id].box;
  const [x, y] = toFile(point);
  view.scale = limit(view.scale * factor, Math.min(scaleFor(x2 - x1, y2 - y1), CLOSEST), CLOSEST);
  pan(toFile(point)[0] - x, toFile(point)[1] - y);
}
function pan(dx, dy) { // by pixels of the file; a picture larger than the stage fills it
  const [x1, y1, x2, y2] = crops[current.id].box;
  const [halfX, halfY] = middle().map((half) => (half - EDGE) / view.scale);
  view.x = limit(view.x - dx, Math.min(x1 + halfX, (x1 + x2) / 2), Math.max(x2 - halfX, (x1 + x2) / 2));
  view.y = limit(view.y - dy, Math.min(y1 + halfY, (y1 + y2) / 2), Math.max(y2 - halfY, (y1 + y2) / 2));
  draw();
}
function entries() { // boxes by key: the labels as they are now, and the suggestion while it is not taken
  const all = labelsOf(current.image);
  if (current.suggestion && [undefined, "rejected"].includes(verdictOf(current))) all.set("suggestion", current.suggestion);
  if (draft) all.set(draft.key, { ...all.get(draft.key), deleted: false, box: draft.box });
  const moves = current.label === null || "box" in suggestedEdit(current);
  if (!all.has(selected)) selected = moves && all.has("suggestion") ? "suggestion" : keyOf(current);
  return all;
}
function describe(key, { class: index, crowd, deleted, original }) {
  if (key === "suggestion") return `suggested: ${names[index]}`;
  const was = original && index !== original.class && `was ${names[original.class]}`;
  return [names[index], crowd && "crowd", deleted ? "deleted" : was].filter(Boolean).join(", ");
}
function draw() {
  place($("picture"), crops[current.id].box, view, middle());
  const focused = document.activeElement?.dataset.focus;
  const [x1, y1, x2, y2] = crops[current.id].box;
  const seen = [...entries()].filter(([key, { box }]) => key === selected || (box[0] < x2 && box[2] > x1 && box[1] < y2 && box[3] > y1));
  const area = ([, { box }]) => (box[2] - box[0]) * (box[3] - box[1]); // small ones on top
  $("boxes").replaceChildren(...seen.sort((a, b) => area(b) - area(a)).map(([key, label]) => boxNode(key, label)));
  const find = (name) => document.querySelector(`[data-focus="${name}"]`);
  const taken = focused?.replace("suggestion", selected); // a suggestion that is moved becomes a label
  if (focused) (find(focused) ?? find(taken))?.focus({ preventScroll: true });
}
function boxNode(key, label) {
  const text = describe(key, label);
  const state = { target: key === keyOf(current), suggestion: key === "suggestion", selected: key === selected, deleted: label.deleted };
  state.changed = !state.suggestion && isChanged(label);
  const classes = Object.keys(state).filter((name) => state[name]);
  const spoken = `${text}, ${label.box.map(Math.round).join(" ")}`;
  const node = make("div", { class: `box ${classes.join(" ")}`, "data-box": key, "data-focus": key, "aria-label": spoken, role: "group", tabindex: 0 });
  const margin = state.suggestion && same(label.box, current.box) ? -4 / view.scale : 0; // within the label under it
  place(node, label.box.map((value, k) => (k < 2 ? value - margin : value + margin)), view, middle());
  node.append(make("span", { class: "tag", dir: "auto" }, text));
  if (state.selected && !label.deleted)
    for (const [k, [, , name]] of CORNERS.entries())
      node.append(make("button", { "data-corner": k, "data-focus": `${key} ${k}`, "aria-label": `${name} corner of ${text}` }));
  return node;
}
const focusBox = () => document.querySelector(".box.selected")?.focus({ preventScroll: true });
function moved(box, corner, by) { // by pixels of the file, within the image; corner: 0 to 3, undefined: all
  const made = [...box];
  for (const [axis, size] of [images[current.image].width, images[current.image].height].entries()) {
    const ends = corner === undefined ? [axis, axis + 2] : [CORNERS[corner][axis]];
    const step = limit(by[axis], -Math.max(box[ends[0]], 0), Math.max(size - box[ends.at(-1)], 0));
    for (const k of ends) made[k] = limit(Math.round((box[k] + step) * 100) / 100, 0, size);
    [made[axis], made[axis + 2]] = [made[axis], made[axis + 2]].sort((a, b) => a - b);
  }
  return made;
}
const pointers = new Map(); // points of the stage, by pointer
const pointOf = ({ clientX, clientY }) => [clientX - stage.getBoundingClientRect().left, clientY - stage.getBoundingClientRect().top];
function twoFingers() {
  const [[ax, ay], [bx, by]] = pointers.values();
  return { length: Math.max(Math.hypot(ax - bx, ay - by), 1), x: (ax + bx) / 2, y: (ay + by) / 2 };
}
stage.addEventListener("pointerdown", (event) => {
  if (event.button || event.target.closest("#zoom")) return;
  stage.setPointerCapture(event.pointerId);
  const start = pointOf(event);
  pointers.set(event.pointerId, start);
  const key = event.target.closest("[data-box]")?.dataset.box;
  drag = { key, corner: event.target.dataset.corner, start, last: start, clicked: true };
  if (key === selected) drag.box = entries().get(key).box;
  if (pointers.size > 1) drag = draft = null;
});
stage.addEventListener("pointermove", (event) => {
  if (!pointers.has(event.pointerId)) return;
  const before = pointers.size === 2 && twoFingers();
  const point = pointOf(event);
  pointers.set(event.pointerId, point);
  const after = pointers.size === 2 && twoFingers();
  if (after) pan((after.x - before.x) / view.scale, (after.y - before.y) / view.scale);
  if (after) zoom(after.length / before.length, [after.x, after.y]);
  if (!drag || (drag.clicked && Math.hypot(point[0] - drag.start[0], point[1] - drag.start[1]) < CLICK)) return;
  const since = (from) => point.map((value, k) => (value - from[k]) / view.scale);
  if (drag.box) draft = { key: drag.key, box: moved(drag.box, drag.corner, since(drag.start)) };
  pan(...(drag.box ? [0, 0] : since(drag.last)));
  Object.assign(drag, { last: point, clicked: false });
});
function lift(event) {
  pointers.delete(event.pointerId);
  const [ended, made] = [drag, draft];
  drag = draft = null;
  if (event.type === "pointercancel") draw();
  else if (made) edit(made.key, { box: made.box });
  else if (ended?.clicked && ended.key) showSuspect(ended.key);
}
for (const type of ["pointerup", "pointercancel"]) stage.addEventListener(type, lift);
stage.addEventListener("focusin", ({ target: { dataset: { box } } }) => { if (box && box !== selected) showSuspect(box); });
stage.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(-event.deltaY / 400), pointOf(event));
}, { passive: false });

// The list
const FILTERS = {
  kind: (suspect) => [kinds[suspect.kind]],
  class: ({ class: index, suggestion }) => [names[index], names[suggestion?.class]],
  split: (suspect) => [images[suspect.image].split],
  decision: (suspect) => [VERDICTS[verdictOf(suspect)] ?? "Undecided"],
};
const pictureOf = (suspect) => (crops[suspect.id].jpeg ? `data:image/jpeg;base64,${crops[suspect.id].jpeg}` : "data:,");
function thumbnail(suspect) {
  const [x1, y1, x2, y2] = crops[suspect.id].box;
  const around = { x: (x1 + x2) / 2, y: (y1 + y2) / 2, scale: THUMB / Math.max(x2 - x1, y2 - y1, 1) };
  const parts = [[make("img", { alt: "", src: pictureOf(suspect) }), [x1, y1, x2, y2]]];
  if (suspect.label !== null) parts.push([make("i"), suspect.box]);
  if (suspect.suggestion) parts.push([make("i", { class: "suggestion" }), suspect.suggestion.box]);
  for (const [node, box] of parts) place(node, box, around, [THUMB / 2, THUMB / 2]);
  return make("span", { class: "thumb" }, ...parts.map(([node]) => node));
}
const watch = new IntersectionObserver((seen) => { // the list has pictures where it is seen
  for (const { target, isIntersecting } of seen)
    target.firstChild.replaceWith(isIntersecting ? thumbnail(suspects[target.dataset.number]) : make("span", { class: "thumb" }));
}, { root: list, rootMargin: "300px" });
function addRow(suspect, number) {
  const lines = [["b", `${percent(suspect.probability)} ${names[suspect.class]}`], ["span", kinds[suspect.kind]], ["span", effect(suspect)]];
  const text = make("span", { class: "text" }, ...lines.map(([tag, line]) => make(tag, {}, line)));
  const row = make("li", { id: `suspect-${number}`, role: "option", "data-number": number }, make("span"), text);
  row.addEventListener("click", () => { openList(false); go(suspect); });
  rows.set(suspect, row);
  watch.observe(row);
}
function showDecisions() {
  for (const [suspect, row] of rows) row.dataset.verdict = VERDICTS[verdictOf(suspect)] ?? "";
  $("progress").value = decisions.size / suspects.length;
  const warning = kept ? "" : ". This browser does not keep them: save before you close";
  $("count").textContent = `${decisions.size} of ${suspects.length} decided${warning}`;
  [$("undo").disabled, $("redo").disabled] = [!past.length, !future.length];
}
function filter() {
  const wanted = Object.keys(FILTERS).filter((name) => $(name).value);
  shown = suspects.filter((suspect) => wanted.every((name) => FILTERS[name](suspect).includes($(name).value)));
  list.replaceChildren(...shown.map((suspect) => rows.get(suspect)));
  const all = review.all > suspects.length ? `, the most probable of ${review.all}` : "";
  $("shown").textContent = `${shown.length} of ${suspects.length} suspects${all}`;
  if (!shown.includes(current)) go(shown[0] ?? current);
}

// One suspect
function go(suspect, before = "") {
  rows.get(current).removeAttribute("aria-selected");
  current = suspect;
  const row = rows.get(current);
  row.setAttribute("aria-selected", true);
  row.scrollIntoView({ block: "nearest" });
  list.setAttribute("aria-activedescendant", row.id);
  [$("picture").src, $("problem").textContent] = [pictureOf(current), crops[current.id].problem];
  $("boxes").replaceChildren(); // none of them keeps the focus
  fit();
  showSuspect("");
  say(before);
}
const openList = (on) => $("open").setAttribute("aria-expanded", $("side").classList.toggle("open", on)); // on a phone
const move = (by) => go(shown[limit(shown.indexOf(current) + by, 0, shown.length - 1)] ?? current);
function showSuspect(key) { // with the box of a key selected
  selected = key;
  draw();
  const { kind, probability, reason, label, suggestion } = current;
  const { file, split, width, height, labels } = images[current.image];
  const texts = {
    verdict: `Suspect ${suspects.indexOf(current) + 1} of ${suspects.length}, ${(VERDICTS[verdictOf(current)] ?? "undecided").toLowerCase()}`,
    title: `${kinds[kind]}: ${names[current.class]}`, probability: percent(probability), reason, effect: effect(current),
    kept: label === null ? "nothing is missing" : "the label is right",
  };
  for (const [id, text] of Object.entries(texts)) $(id).textContent = text;
  const { class: index, place: where } = labels[label] ?? {};
  const short = (path) => (path.startsWith(ROOT) ? path.slice(ROOT.length) : path);
  const facts = Object.entries({
    Label: names[index] ?? "none", Suggestion: names[suggestion?.class] ?? "no label", Split: split,
    Image: `${short(file)}, ${width} x ${height} px`, Place: short(where ?? "no label"),
  });
  $("facts").replaceChildren(...facts.flatMap(([name, text]) => [make("dt", {}, name), make("dd", { dir: "auto" }, text)]));
  for (const [id, each] of [["accept", "accepted"], ["reject", "rejected"]]) $(id).setAttribute("aria-pressed", verdictOf(current) === each);
  $("of").selectedIndex = entries().get(selected)?.class ?? -1;
}

// Keys and buttons
const ACTIONS = {
  a: () => judge("accepted"), r: () => judge("rejected"), j: () => move(1), k: () => move(-1),
  ArrowDown: () => move(1), ArrowUp: () => move(-1), e: focusBox, c: () => $("of").focus(), n: addBox, x: removeBox, Delete: removeBox,
  u: () => travel(past, future, "Undo"), U: () => travel(future, past, "Redo"), s: save, "?": () => ($("keys").open ? $("keys").close() : $("keys").showModal()),
  "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), 0: fit,
};
const WITH_CONTROL = { z: ACTIONS.u, Z: ACTIONS.U, y: ACTIONS.U };
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const ONCE = "arnxs?"; // which do nothing more while they are held
function actionOf({ key, target, altKey, ctrlKey, metaKey, shiftKey, repeat }) {
  if (target.matches("select")) return ["Enter", "Escape"].includes(key) ? focusBox : null;
  if (altKey || (repeat && ONCE.includes(key)) || ($("keys").open && key !== "?")) return null;
  if (ctrlKey || metaKey) return WITH_CONTROL[key];
  const box = target.closest("[data-box]")?.dataset.box;
  const by = ARROWS[key]?.map((step) => step * (shiftKey ? 10 : 1));
  if (!box || !by) return ACTIONS[key];
  return () => edit(box, { box: moved(entries().get(box).box, target.dataset.corner, by) });
}
document.addEventListener("keydown", (event) => {
  const action = actionOf(event);
  if (action) event.preventDefault();
  action?.();
});
for (const button of document.querySelectorAll("[data-key]")) button.addEventListener("click", () => ACTIONS[button.dataset.key]());
$("of").addEventListener("change", () => edit(selected, { class: $("of").selectedIndex }));
$("open").addEventListener("click", () => openList());
addEventListener("storage", ({ key }) => { if (key === STORE) { load(); showSuspect(selected); } }); // of another window
addEventListener("beforeunload", (event) => { if (!kept && unsaved) event.preventDefault(); });

// Start
suspects.forEach(addRow);
load();
$("of").append(...names.map((name) => make("option", {}, name)));
for (const [name, values] of Object.entries(FILTERS)) {
  const known = name === "decision" ? ["Undecided", ...Object.values(VERDICTS)] : new Set(suspects.flatMap(values));
  const options = [...known].filter((value) => value !== undefined).map((value) => make("option", { value }, value));
  $(name).append(make("option", { value: "" }, "all"), ...options);
  $(name).addEventListener("change", filter);
}
filter();
go(suspects.find((suspect) => !decisions.has(suspect.id)) ?? current);
new ResizeObserver(fit).observe(stage);
