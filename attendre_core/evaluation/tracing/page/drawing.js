"use strict";
/* Pictures: the survival map, and the weights of the last query. */

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function channels(name) {
  const hex = colour(name).slice(1);
  return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

/* Fit a canvas to its place on the screen; returns its context and size in real pixels. */
function fitted(canvas) {
  const scale = Math.min(window.devicePixelRatio || 1, 3);
  const width = Math.max(1, Math.round(canvas.clientWidth * scale));
  const height = Math.max(1, Math.round(canvas.clientHeight * scale));
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  return { context: canvas.getContext("2d"), width, height };
}

/* Which row of a picture shows a step: the first that lies at or behind it. */
function rowTable(steps, rows) {
  const table = new Int32Array(steps + 1).fill(rows);
  for (let row = rows - 1, step = steps - 1; row >= 0; row--) {
    const last = Math.floor(((row + 1) * steps) / rows) - 1;
    const first = Math.floor((row * steps) / rows);
    for (; step >= first; step--) table[step] = step <= last ? row : row + 1;
  }
  return table;
}

/*
 * Draw a survival map. Tokens that share a column are counted, by differences along the steps,
 * so the work is that of the tokens plus that of the pixels, never tokens times steps.
 */
function drawMap(canvas, layer) {
  const { context, width, height } = fitted(canvas);
  paintMap(context, layer, [0, 0, width, height]);
}

function paintMap(context, layer, [left, top, width, height]) {
  const columns = Math.min(TOKENS, width);
  const rows = Math.min(layer.steps, height);
  const rowOf = rowTable(layer.steps, rows);
  const size = columns * (rows + 1);
  const counts = [null, new Float32Array(size), new Float32Array(size), new Float32Array(size)];
  const total = new Float32Array(columns);
  const { born, gone, reason } = layer;
  for (let t = 0; t < TOKENS; t++) {
    const column = Math.floor((t * columns) / TOKENS);
    total[column]++;
    const came = rowOf[Math.min(born[t], layer.steps)];
    const went = gone[t] === 0 ? rows : rowOf[gone[t] - 1];
    counts[HELD][came * columns + column]++;
    counts[HELD][went * columns + column]--;
    if (gone[t] !== 0) {
      const state = reason[t] === REFUSED_REASON ? REFUSED : EVICTED;
      counts[state][went * columns + column]++;
    }
  }
  const palette = ["--ahead", "--held", "--evicted", "--refused"].map(channels);
  const image = new ImageData(columns, rows);
  const sums = [0, 1, 2, 3].map(() => new Float32Array(columns));
  for (let row = 0, at = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++, at++) {
      for (let state = 1; state < 4; state++) {
        sums[state][column] += counts[state][row * columns + column];
      }
      const share = [1, 2, 3].map((state) => sums[state][column] / total[column]);
      // A few survivors among many tokens of a column shall be seen.
      const held = Math.sqrt(share[0]);
      const rest = share[0] < 1 ? (1 - held) / (1 - share[0]) : 0;
      const ahead = Math.max(0, 1 - share[0] - share[1] - share[2]);
      const parts = [ahead * rest, held, share[1] * rest, share[2] * rest];
      for (let c = 0; c < 3; c++) {
        let mixed = 0;
        for (let state = 0; state < 4; state++) mixed += parts[state] * palette[state][c];
        image.data[4 * at + c] = mixed;
      }
      image.data[4 * at + 3] = 255;
    }
  }
  const small = document.createElement("canvas");
  small.width = columns;
  small.height = rows;
  small.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, left, top, width, height);
}

/* Mark a token and a step. */
function drawCursor(canvas, layer, token, step) {
  const { context, width, height } = fitted(canvas);
  context.strokeStyle = colour("--cursor");
  context.lineWidth = Math.max(1, Math.round(window.devicePixelRatio || 1));
  const x = ((token + 0.5) / TOKENS) * width;
  const y = ((step + 0.5) / layer.steps) * height;
  context.beginPath();
  context.moveTo(x, 0);
  context.lineTo(x, height);
  context.moveTo(0, y);
  context.lineTo(width, y);
  context.globalAlpha = 0.7;
  context.stroke();
  context.globalAlpha = 1;
}

/*
 * Draw weights as bars; of the tokens that share a column the largest. Heights are square roots:
 * a sink with most of the attention shall not hide the rest.
 */
function drawWeights(canvas, found, cursor) {
  const { context, width, height } = fitted(canvas);
  context.clearRect(0, 0, width, height);
  context.fillStyle = colour("--cursor");
  context.globalAlpha = 0.6;
  context.fillRect(((cursor + 0.5) / TOKENS) * width - 1, 0, 2, height);
  context.globalAlpha = 1;
  const thin = 3 * Math.min(window.devicePixelRatio || 1, 3);
  paintWeightBars(context, found, [0, 0, width, height], thin);
}

function paintWeightBars(context, { tokens, weights }, [left, top, width, height], thin) {
  const columns = Math.min(TOKENS, Math.floor(width / 2));
  const highest = new Float64Array(columns);
  for (let i = 0; i < tokens.length; i++) {
    const column = Math.floor((tokens[i] * columns) / TOKENS);
    highest[column] = Math.max(highest[column], weights[i]);
  }
  const most = highest.reduce((a, b) => Math.max(a, b), 0);
  // Bars stand on their place; at the edges they are moved inside, where they can be seen.
  const wide = Math.max((width / columns) * 0.85, thin);
  context.fillStyle = colour("--weight");
  for (let column = 0; column < columns; column++) {
    if (!highest[column]) continue;
    const tall = Math.max(Math.sqrt(highest[column] / most) * height * 0.94, 1);
    const middle = ((column + 0.5) / columns) * width;
    const from = Math.min(Math.max(middle - wide / 2, 0), width - wide);
    context.fillRect(left + from, top + height - tall, wide, tall);
  }
}
