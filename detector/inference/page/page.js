// Finds objects in photos and in the camera's picture. Nothing is sent anywhere.

import { letterbox, plan, toPhoto } from "./letterbox.js";

const COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"];
const DARK = ["#009e73", "#0072b2", "#d55e00"];
const $ = (id) => document.getElementById(id);
const say = (text) => ($("status").textContent = text);
const colourOf = (k) => COLOURS[k % COLOURS.length];
let ort; // ONNX Runtime Web
let session;
let model; // its metadata
let shown; // the photo
let stream; // of the camera, while it is on
let turn = Promise.resolve(); // one detection at a time
window.detections = []; // of the photo, best first; box is x1, y1, x2, y2 in its pixels

async function bytesOf(address, integrity = "") {
  const reply = await fetch(address, { integrity });
  if (!reply.ok) throw new Error(`${address}: ${reply.status}`);
  return new Uint8Array(await reply.arrayBuffer());
}

async function load() {
  say("Loading the detector ...");
  const runtime = $("runtime");
  ort = await import(runtime.src); // already loaded, and compared with its hash
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = await bytesOf(runtime.dataset.wasm, runtime.dataset.hash);
  model = JSON.parse(new TextDecoder().decode(await bytesOf("metadata.json")));
  session = await ort.InferenceSession.create(await bytesOf("model.onnx"));
  $("about").textContent = model.names.length === 1 ? "1 class" : `${model.names.length} classes`;
  $("names").textContent = model.names.join(", ");
  $("conf").min = model.nms.conf;
  $("conf").value = Math.max(model.nms.conf, 0.25);
  $("file").disabled = $("camera").disabled = false;
  say("Ready");
  show();
}

async function detect(photo) {
  const began = performance.now();
  const sizes = plan(photo.width, photo.height, Math.max(...model.image_size), model.stride);
  const pixels = letterbox(photo, sizes);
  const images = new ort.Tensor("float32", pixels, [1, 3, sizes.rows, sizes.columns]);
  const rows = (await session.run({ images })).output.data; // image, x1, y1, x2, y2, score, class
  const found = [];
  for (let i = 0; i < rows.length; i += 7) {
    const [score, k] = rows.slice(i + 5, i + 7);
    found.push({ box: toPhoto(rows.slice(i + 1, i + 5), sizes), score, k, name: model.names[k] });
  }
  shown?.close();
  shown = photo;
  window.detections = found;
  show(`, ${Math.round(performance.now() - began)} ms`);
}

function show(time = "") {
  const least = Number($("conf").value);
  $("least").textContent = least.toFixed(2);
  if (!shown) return;
  const found = window.detections.filter((object) => object.score >= least);
  draw(found);
  const counts = new Map();
  for (const { k } of found) counts.set(k, (counts.get(k) ?? 0) + 1);
  const entries = [...counts].sort((a, b) => b[1] - a[1]).map(([k, count]) => {
    const entry = document.createElement("li");
    entry.textContent = `${model.names[k]} ${count}`;
    entry.style.borderColor = colourOf(k);
    return entry;
  });
  $("objects").replaceChildren(...entries);
  const objects = found.length === 1 ? "1 object" : `${found.length || "No"} objects`;
  $("view").ariaLabel = `Photo with ${objects}`;
  say(objects + time);
}

function draw(found) {
  const view = $("view");
  $("hint").hidden = true;
  view.hidden = false;
  const room = Math.min($("stage").clientWidth / shown.width, (0.72 * innerHeight) / shown.height);
  const [width, height] = [shown.width, shown.height].map((side) => side * Math.min(room, 3));
  view.style.width = `${width}px`;
  view.width = width * devicePixelRatio;
  view.height = height * devicePixelRatio;
  const context = view.getContext("2d");
  context.scale(devicePixelRatio, devicePixelRatio);
  context.drawImage(shown, 0, 0, width, height);
  const line = width < 500 ? 15 : 18; // height of a name
  context.font = `600 ${line - 5}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.lineWidth = 2;
  for (const { box, score, k, name } of found.toReversed()) { // the best on top
    const [x1, y1, x2, y2] = box.map((side) => (side * width) / shown.width);
    context.fillStyle = context.strokeStyle = colourOf(k);
    context.strokeRect(x1, y1, x2 - x1, y2 - y1);
    const text = `${name} ${score.toFixed(2)}`;
    const long = context.measureText(text).width + 6;
    const x = Math.max(Math.min(x1 - 1, width - long), 0);
    const y = Math.max(y1 - line, 0);
    context.fillRect(x, y, long, line);
    context.fillStyle = DARK.includes(colourOf(k)) ? "white" : "black";
    context.fillText(text, x + 3, y + line / 2 + 0.5);
  }
}

function queue(photo) {
  return (turn = turn.then(() => detect(photo)).catch((e) => say(`Detection fails: ${e.message}`)));
}

async function take(file) {
  if (!file || !session) return;
  stopCamera();
  say("Detecting ...");
  try { // pixels as they are in the file, without a colour profile, as in training
    const photo = await createImageBitmap(file, { colorSpaceConversion: "none" });
    requestAnimationFrame(() => setTimeout(queue, 0, photo)); // the words show first
  } catch {
    say(`${file.name}: no image that this browser reads`);
  }
}

async function startCamera() {
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    return say(`No camera: ${error.message}`);
  }
  $("camera").textContent = "Stop";
  const video = Object.assign(document.createElement("video"), { muted: true, playsInline: true });
  video.srcObject = stream;
  await video.play();
  for (const own = stream; stream === own; await new Promise(requestAnimationFrame)) {
    const frame = await createImageBitmap(video);
    if (stream === own) await queue(frame);
  }
}

function stopCamera() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = undefined;
  $("camera").textContent = "Camera";
}

function drag(event) {
  event.preventDefault();
  document.body.classList.toggle("over", event.type === "dragover");
  if (event.type === "drop") take(event.dataTransfer.files[0]);
}

for (const type of ["dragover", "dragleave", "drop"]) document.addEventListener(type, drag);
$("file").addEventListener("change", (event) => take(event.target.files[0]));
$("conf").addEventListener("input", () => show());
$("camera").addEventListener("click", () => (stream ? stopCamera() : startCamera()));
addEventListener("resize", () => show());
load().catch((error) => say(`The detector cannot be loaded: ${error.message}`));
