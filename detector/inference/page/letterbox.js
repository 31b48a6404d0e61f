// The network's input, with the pixels that `predict` makes of a photo (OpenCV's INTER_AREA and
// INTER_LINEAR), and the way back from its boxes to those of the photo.

const GREY = 114;
const STRIP = 64; // rows of the photo that are read at once: some phones have no canvas for all

// Sizes in pixels of a photo of width x height, scaled to w x h, in an input of columns x rows.
export function plan(width, height, size, stride) {
  const gain = size / Math.max(width, height);
  const scaled = (side) => Math.ceil(Number((side * gain).toFixed(6)));
  const padded = (share) => Math.ceil((Math.min(share, 1) * size) / stride) * stride;
  const ratio = height / width;
  const [w, h] = [scaled(width), scaled(height)];
  const [columns, rows] = [padded(1 / ratio), padded(ratio)];
  return { width, height, w, h, columns, rows, left: (columns - w) / 2, top: (rows - h) / 2 };
}

// Which of n source pixels make up which of m output pixels, with what weight.
function weights(n, m) {
  const scale = n / m;
  const taps = { output: [], source: [], weight: [] };
  const add = (output, source, weight) => {
    taps.output.push(output);
    taps.source.push(source);
    taps.weight.push(weight);
  };
  for (let i = 0; i < m; i++) {
    if (scale > 1) { // the share of its area
      const first = i * scale;
      const last = Math.min(first + scale, n);
      for (let s = Math.floor(first); s < Math.min(last, n); s++) {
        const part = Math.min(s + 1, last) - Math.max(s, first);
        if (part > 0.001) add(i, s, part / (last - first));
      }
    } else { // the two nearest centres
      const centre = Math.min(Math.max((i + 0.5) * scale - 0.5, 0), n - 1);
      const s = Math.min(Math.floor(centre), n - 2);
      if (n > 1) add(i, s, 1 - (centre - s));
      add(i, s + 1, n > 1 ? centre - s : 1);
    }
  }
  return taps;
}

// Float32 (3, rows, columns) in 0..1, RGB, of a photo that can be drawn on a canvas.
export function letterbox(photo, { width, height, w, h, columns, rows, left, top }) {
  const strip = new OffscreenCanvas(width, Math.min(STRIP, height));
  const context = strip.getContext("2d", { willReadFrequently: true });
  const across = weights(width, w);
  const down = weights(height, h);
  const linesOf = Array.from({ length: height }, () => []);
  down.source.forEach((s, i) => linesOf[s].push(i));
  const scaled = new Float32Array(w * h * 3);
  const line = new Float32Array(w * 3);
  let rgba;
  for (let y = 0; y < height; y++) {
    if (y % STRIP === 0) {
      context.clearRect(0, 0, width, STRIP);
      context.drawImage(photo, 0, -y);
      rgba = context.getImageData(0, 0, width, strip.height).data;
    }
    const start = (y % STRIP) * width * 4;
    line.fill(0);
    for (let i = 0; i < across.weight.length; i++) {
      const from = start + across.source[i] * 4;
      const to = across.output[i] * 3;
      line[to] += rgba[from] * across.weight[i];
      line[to + 1] += rgba[from + 1] * across.weight[i];
      line[to + 2] += rgba[from + 2] * across.weight[i];
    }
    for (const i of linesOf[y]) {
      const to = down.output[i] * line.length;
      for (let x = 0; x < line.length; x++) scaled[to + x] += line[x] * down.weight[i];
    }
  }
  const bytes = Uint8ClampedArray.from(scaled); // rounds a half to the even number, as OpenCV does
  const images = new Float32Array(3 * rows * columns).fill(GREY / 255);
  for (let y = 0; y < h; y++) {
    for (let x = 0; x < w; x++) {
      const to = (y + Math.floor(top)) * columns + x + Math.floor(left);
      for (let c = 0; c < 3; c++) {
        images[c * rows * columns + to] = bytes[(y * w + x) * 3 + c] / 255;
      }
    }
  }
  return images;
}

// x1, y1, x2, y2 in pixels of the input -> in pixels of the photo.
export function toPhoto([x1, y1, x2, y2], { width, height, w, h, left, top }) {
  const x = (value) => Math.min(Math.max(((value - left) * width) / w, 0), width);
  const y = (value) => Math.min(Math.max(((value - top) * height) / h, 0), height);
  return [x(x1), y(y1), x(x2), y(y2)];
}
