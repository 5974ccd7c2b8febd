"use strict";
/* The two maps with their captions as one picture, to be saved and passed on. */

const [SHEET, MARGIN, MAP_TALL, BARS_TALL] = [1600, 40, 420, 90];
const FONT = "system-ui, sans-serif";

/* Break a text into lines that fit. */
function linesOf(context, text, width) {
  const lines = [""];
  for (const word of text.split(/\s+/)) {
    const longer = lines[lines.length - 1] ? `${lines[lines.length - 1]} ${word}` : word;
    if (context.measureText(longer).width <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/* Write a line; one that is too long for its place becomes narrower. */
function write(context, text, [x, y, most], size, name, { weight = 400, align = "left" } = {}) {
  context.font = `${weight} ${size}px ${FONT}`;
  context.fillStyle = colour(name);
  context.textAlign = align;
  context.fillText(text, x, y, most);
}

function drawSheet() {
  const sheet = made("canvas");
  const context = sheet.getContext("2d");
  const whole = SHEET - 2 * MARGIN;
  context.font = `600 26px ${FONT}`;
  const title = linesOf(context, TRACE.title, whole);
  const top = MARGIN + 36 * title.length + 40;
  sheet.width = SHEET;
  sheet.height = top + MAP_TALL + BARS_TALL + 250;
  context.fillStyle = colour("--panel");
  context.fillRect(0, 0, sheet.width, sheet.height);
  context.strokeStyle = colour("--line");
  for (const [i, line] of title.entries()) {
    write(context, line, [MARGIN, MARGIN + 26 + 36 * i, whole], 26, "--ink", { weight: 600 });
  }
  const near = layer().window ? ` (sliding window of ${layer().window})` : "";
  const shared = TRACE.shared ? `; all memories ${TRACE.shared}` : "";
  const told = `Layer ${layer().number}${near}${shared}. Tokens from left to right, steps from top to bottom.`;
  write(context, told, [MARGIN, top - 16, whole], 18, "--soft");
  const shown = other() ? [policy(), other()] : [policy()];
  const wide = (SHEET - MARGIN * (shown.length + 1)) / shown.length;
  shown.forEach((one, i) => drawOne(context, one, MARGIN + i * (wide + MARGIN), top, wide));
  drawLegend(context, sheet.height - 28);
  return sheet;
}

/* One memory: its name and its answer, its map, the last query, and what it holds. */
function drawOne(context, one, left, top, wide) {
  const part = one.layers[chosen.layer];
  const { tokens, weights } = part.attention(chosen.head);
  const [map, bars] = [top + 76, top + 76 + MAP_TALL + 34];
  const mark = one.right === null ? "--ink" : one.right ? "--weight" : "--cursor";
  write(context, one.short, [left, top + 28, wide], 24, "--ink", { weight: 600 });
  write(context, verdict(one), [left, top + 58, wide], 21, mark);
  paintMap(context, part, [left, map, wide, MAP_TALL]);
  context.strokeRect(left, map, wide, MAP_TALL);
  const below = map + MAP_TALL + 22;
  write(context, "token 0", [left, below, wide], 16, "--soft");
  write(context, `token ${TOKENS - 1}`, [left + wide, below, wide], 16, "--soft", { align: "right" });
  paintWeightBars(context, { tokens, weights }, [left, bars, wide, BARS_TALL], 5);
  context.strokeRect(left, bars, wide, BARS_TALL);
  const held = holds(one, part, part.ending.counts[HELD]);
  write(context, `holds ${held}`, [left, bars + BARS_TALL + 28, wide], 18, "--ink");
  if (!tokens.length) return;
  const most = weights.reduce((a, b) => Math.max(a, b));
  const best = tokens[weights.indexOf(most)];
  const seen = `most attention: ${quoted(best)}, token ${best}, ${percent(most)}`;
  write(context, seen, [left, bars + BARS_TALL + 54, wide], 18, "--ink");
}

function drawLegend(context, y) {
  let x = MARGIN;
  for (const [name, words] of [
    ["--held", "in memory"], ["--evicted", "evicted"], ["--refused", "refused"],
    ["--ahead", "not read yet"], ["--weight", "attention of the last query"],
  ]) {
    context.fillStyle = colour(name);
    context.fillRect(x, y - 17, 20, 20);
    context.strokeRect(x, y - 17, 20, 20);
    write(context, words, [x + 28, y], 18, "--ink");
    x += 28 + context.measureText(words).width + 32;
  }
  write(context, "attendre trace", [SHEET - MARGIN, y], 18, "--soft", { align: "right" });
}

function savePicture() {
  drawSheet().toBlob((blob) => {
    const link = made("a");
    link.download = "attendre-trace.png";
    link.href = URL.createObjectURL(blob);
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}
