// The network's input with the pixels that `predict` makes of a photo, and the way back from boxes.

const GREY = 114;
const STRIP = 64; // rows of the photo that are read at once: some phones have no canvas for all

// Sizes in pixels: a photo of width x height, scaled to w x h, in an input of columns x rows.
export function plan(width, height, size, stride) {
  const gain = size / Math.max(width, height);
  const scaled = (side) => Math.ceil(Number((side * gain).toFixed(6)));
  const padded = (share) => Math.ceil((Math.min(share, 1) * size) / stride) * stride;
  const [w, h] = [scaled(width), scaled(height)];
  const [columns, rows] = [padded(width / height), padded(height / width)];
  return { width, height, w, h, columns, rows, left: (columns - w) / 2, top: (rows - h) / 2 };
}

// Which of n source pixels make up which of m output pixels, with what weight: when shrinking, as
// OpenCV's INTER_AREA, the shares of its area; else, as INTER_LINEAR, the nearest two in 1/2048.
function taps(n, m, shrinks) {
  const taps = [];
  const scale = n / m;
  for (let output = 0; output < m; output++) {
    const first = output * scale;
    const last = Math.min(first + scale, n);
    if (shrinks) {
      for (let source = Math.floor(first); source < last; source++) {
        const part = Math.min(source + 1, last) - Math.max(source, first);
        if (part > 0.001) taps.push({ output, source, weight: part / (last - first) });
      }
    } else {
      const centre = Math.min(Math.max((output + 0.5) * scale - 0.5, 0), n - 1);
      const source = Math.floor(centre);
      const weight = Math.round((centre - source) * 2048);
      taps.push({ output, source, weight: 2048 - weight });
      if (weight) taps.push({ output, source: source + 1, weight });
    }
  }
  return taps;
}

// Float32 (3, rows, columns), RGB in 0..1, of a photo that can be drawn on a canvas.
export function letterbox(photo, { width, height, w, h, columns, rows, left, top }) {
  const shrinks = Math.max(w, h) < Math.max(width, height);
  const across = taps(width, w, shrinks);
  const down = Array.from({ length: height }, () => []);
  for (const tap of taps(height, h, shrinks)) down[tap.source].push(tap);
  const scaled = new Float32Array(h * w * 3);
  const line = new Float32Array(w * 3);
  const context = new OffscreenCanvas(width, STRIP).getContext("2d", { willReadFrequently: true });
  let rgba;
  for (let y = 0; y < height; y++) {
    if (y % STRIP === 0) {
      context.clearRect(0, 0, width, STRIP);
      context.drawImage(photo, 0, -y);
      rgba = context.getImageData(0, 0, width, STRIP).data;
    }
    line.fill(0);
    for (const { output, source, weight } of across) {
      const from = ((y % STRIP) * width + source) * 4;
      for (let c = 0; c < 3; c++) line[output * 3 + c] += rgba[from + c] * weight;
    }
    for (const { output, weight } of down[y]) {
      const to = output * line.length;
      for (let i = 0; i < line.length; i++) {
        scaled[to + i] += shrinks ? line[i] * weight : ((line[i] >> 4) * weight) >> 16;
      }
    }
  }
  const images = new Float32Array(3 * rows * columns).fill(GREY / 255);
  const halves = width === 2 * w && height === 2 * h ? 0.001 : 0; // rounded up, else to even
  const bytes = Uint8ClampedArray.from(scaled, (v) => (shrinks ? v + halves : (v + 2) >> 2));
  bytes.forEach((byte, i) => {
    const pixel = Math.floor(i / 3);
    const y = Math.floor(pixel / w) + Math.floor(top);
    const x = (pixel % w) + Math.floor(left);
    images[((i % 3) * rows + y) * columns + x] = byte / 255;
  });
  return images;
}

// x1, y1, x2, y2 in pixels of the input -> in pixels of the photo.
export function toPhoto([x1, y1, x2, y2], { width, height, w, h, left, top }) {
  const x = (value) => Math.min(Math.max(((value - left) * width) / w, 0), width);
  const y = (value) => Math.min(Math.max(((value - top) * height) / h, 0), height);
  return [x(x1), y(y1), x(x2), y(y2)];
}
