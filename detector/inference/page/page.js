// Finds objects in photos and in the camera's picture. Nothing is sent anywhere.

import { letterbox, plan, toPhoto } from "./letterbox.js";

const COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"];
const WHITE_TEXT = ["#0072b2", "#d55e00", "#009e73"];
const $ = (id) => document.getElementById(id);
const colourOf = (k) => COLOURS[k % COLOURS.length];
let model; // its metadata: names, image_size, stride
let ort;
let session;
let shown; // the photo
let stream; // of the camera, while it is on
let turn = Promise.resolve(); // one detection at a time
window.detections = []; // of the photo: box (x1, y1, x2, y2 in its pixels), score, name; best first

function say(text) {
  $("status").textContent = text;
}

async function bytesOf(address, integrity) {
  const reply = await fetch(address, integrity ? { integrity } : {});
  if (!reply.ok) throw new Error(`${address}: ${reply.status}`);
  return new Uint8Array(await reply.arrayBuffer());
}

async function load() {
  say("Loading the detector ...");
  const runtime = $("runtime");
  ort = await import(runtime.src); // the module that the browser compared with its hash
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = await bytesOf(runtime.dataset.wasm, runtime.dataset.hash);
  model = JSON.parse(new TextDecoder().decode(await bytesOf("metadata.json")));
  session = await ort.InferenceSession.create(await bytesOf("model.onnx"));
  $("about").textContent = model.names.length === 1 ? "1 class" : `${model.names.length} classes`;
  $("names").textContent = model.names.join(", ");
  $("conf").min = model.nms.conf;
  $("conf").value = Math.max(model.nms.conf, 0.25);
  $("file").disabled = false;
  $("camera").disabled = false;
  say("Ready");
  show();
}

async function detect(photo) {
  const began = performance.now();
  const sizes = plan(photo.width, photo.height, Math.max(...model.image_size), model.stride);
  const shape = [1, 3, sizes.rows, sizes.columns];
  const images = new ort.Tensor("float32", letterbox(photo, sizes), shape);
  const rows = (await session.run({ images })).output.data; // image, x1, y1, x2, y2, score, class
  const found = [];
  for (let i = 0; i < rows.length; i += 7) {
    const [x1, y1, x2, y2, score, k] = rows.slice(i + 1, i + 7);
    found.push({ box: toPhoto([x1, y1, x2, y2], sizes), score, k, name: model.names[k] });
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
  const entries = [...counts].sort((a, b) => b[1] - a[1]);
  $("objects").replaceChildren(...entries.map(([k, count]) => {
    const entry = document.createElement("li");
    entry.textContent = `${model.names[k]} ${count}`;
    entry.style.borderColor = colourOf(k);
    return entry;
  }));
  const objects = found.length === 1 ? "1 object" : `${found.length || "No"} objects`;
  $("view").ariaLabel = `Photo with ${objects}`;
  say(objects + time);
}

function draw(found) {
  const view = $("view");
  $("hint").hidden = true;
  view.hidden = false;
  const room = Math.min($("stage").clientWidth / shown.width, (0.72 * innerHeight) / shown.height);
  const scale = Math.min(room, 3);
  view.style.width = `${shown.width * scale}px`;
  view.width = shown.width * scale * devicePixelRatio;
  view.height = shown.height * scale * devicePixelRatio;
  const context = view.getContext("2d");
  context.scale(devicePixelRatio, devicePixelRatio);
  context.drawImage(shown, 0, 0, shown.width * scale, shown.height * scale);
  context.font = "600 13px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.lineWidth = 2;
  for (const { box, score, k, name } of found.toReversed()) { // the best on top
    const [x1, y1, x2, y2] = box.map((side) => side * scale);
    context.strokeStyle = colourOf(k);
    context.strokeRect(x1, y1, x2 - x1, y2 - y1);
    const text = `${name} ${score.toFixed(2)}`;
    const width = context.measureText(text).width + 8;
    const x = Math.max(Math.min(x1 - 1, shown.width * scale - width), 0);
    const y = Math.max(y1 - 18, 0);
    context.fillStyle = colourOf(k);
    context.fillRect(x, y, width, 18);
    context.fillStyle = WHITE_TEXT.includes(colourOf(k)) ? "white" : "black";
    context.fillText(text, x + 4, y + 9);
  }
}

function detectNext(photo) {
  turn = turn.then(() => detect(photo)).catch((error) => say(`Detection failed: ${error.message}`));
  return turn;
}

async function take(file) {
  if (!file || !session) return;
  stopCamera();
  say("Detecting ...");
  try {
    // the pixels of the file, without a colour profile, as OpenCV reads them
    const photo = await createImageBitmap(file, { colorSpaceConversion: "none" });
    requestAnimationFrame(() => setTimeout(detectNext, 0, photo)); // first show the words
  } catch {
    say(`${file.name}: no image that this browser can read`);
  }
}

async function startCamera() {
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    say(`No camera (${error.message})`);
    return;
  }
  $("camera").textContent = "Stop the camera";
  const video = document.createElement("video");
  video.playsInline = true;
  video.muted = true;
  video.srcObject = stream;
  await video.play();
  while (stream) {
    await detectNext(await createImageBitmap(video));
    await new Promise(requestAnimationFrame);
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
window.addEventListener("resize", () => show());
load().catch((error) => say(`The detector cannot be loaded: ${error.message}`));
