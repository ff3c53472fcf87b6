// Draws on canvases: stacked bars, and a map of KV blocks. Colours are those of the style sheet.

const MAX_CELL_PX = 18;
const MIN_CELL_PX = 3;
const KIND_OF_LETTER = { n: "null", f: "free", c: "cached", t: "moving", a: "active", s: "shared" };

/** Columns that stand on the lower edge, the last one at the right. Returns the sum of the highest. */
export function drawBars(canvas, columns, kinds, numSlots) {
  const { context, width, height } = open(canvas);
  const colors = kinds.map(color);
  const sums = columns.map((column) => column.reduce((sum, value) => sum + value, 0));
  const highest = Math.max(0, ...sums);
  // What is there is seen, be it ever so little: each part has a pixel at least, and the highest column room for that.
  const scale = highest > 0 ? (height - kinds.length) / highest : 0;
  const gap = width / numSlots >= 3 * devicePixelRatio ? Math.round(devicePixelRatio) : 0;
  columns.forEach((column, index) => {
    const slot = numSlots - columns.length + index;
    const left = Math.round((slot * width) / numSlots);
    const right = Math.round(((slot + 1) * width) / numSlots) - gap;
    let below = 0;
    let sum = 0;
    column.forEach((value, kind) => {
      if (value <= 0) return;
      sum += value;
      const above = Math.max(below + 1, Math.round(sum * scale));
      context.fillStyle = colors[kind];
      context.fillRect(left, height - above, Math.max(1, right - left), above - below);
      below = above;
    });
  });
  context.fillStyle = color("line");
  context.fillRect(0, height - 1, width, 1);
  return highest;
}

/** A cell for each letter, row by row; the pools of KV memory one below the other. */
export function drawKvMap(canvas, maps) {
  const { context, width, height } = open(canvas);
  const gapRows = maps.length - 1;
  const rowsAt = (size) => maps.reduce((rows, map) => rows + Math.ceil(map.length / Math.floor(width / size)), gapRows);
  let size = Math.round(MAX_CELL_PX * devicePixelRatio);
  while (size > MIN_CELL_PX && rowsAt(size) * size > height) size -= 1;
  const perRow = Math.floor(width / size);
  const gap = size > 4 ? Math.max(1, Math.round(size / 8)) : 0;
  const cells = {};
  let top = 0;
  for (const map of maps) {
    for (let index = 0; index < map.length; index += 1) (cells[map[index]] ??= []).push([index % perRow, top + Math.floor(index / perRow)]);
    top += Math.ceil(map.length / perRow) + 1;
  }
  for (const [letter, places] of Object.entries(cells)) {
    context.fillStyle = color(KIND_OF_LETTER[letter]);
    for (const [column, row] of places) context.fillRect(column * size, row * size, size - gap, size - gap);
  }
}

/** The canvas, empty and as fine as the screen; what is drawn is in the screen's own pixels. */
function open(canvas) {
  const width = Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio));
  const height = Math.max(1, Math.round(canvas.clientHeight * devicePixelRatio));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

function color(kind) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${kind}`);
}
