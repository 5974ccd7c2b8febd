"use strict";
/* The two maps with their captions as one picture, to be saved and passed on. */

const [SHEET, MARGIN, MAP_TALL, BARS_TALL] = [1600, 40, 420, 90];

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

function drawSheet() {
  const sheet = made("canvas");
  const context = sheet.getContext("2d");
  const shown = other() ? [policy(), other()] : [policy()];
  const wide = (SHEET - MARGIN * (shown.length + 1)) / shown.length;
  const font = "system-ui, sans-serif";
  context.font = `600 26px ${font}`;
  const title = linesOf(context, TRACE.title, SHEET - 2 * MARGIN);
  const top = MARGIN + 36 * title.length + 24;
  sheet.width = SHEET;
  sheet.height = top + 84 + MAP_TALL + 16 + BARS_TALL + 110;
  context.fillStyle = colour("--panel");
  context.fillRect(0, 0, sheet.width, sheet.height);
  const write = (text, x, y, size, name, weight = 400) => {
    context.font = `${weight} ${size}px ${font}`;
    context.fillStyle = colour(name);
    context.fillText(text, x, y);
  };
  title.forEach((line, i) => write(line, MARGIN, MARGIN + 26 + 36 * i, 26, "--ink", 600));
  shown.forEach((one, i) => {
    const left = MARGIN + i * (wide + MARGIN);
    const part = one.layers[chosen.layer];
    const mark = one.right === null ? "--ink" : one.right ? "--weight" : "--cursor";
    write(one.short, left, top + 24, 24, "--ink", 600);
    write(verdict(one), left, top + 56, 21, mark);
    const box = [left, top + 76, wide, MAP_TALL];
    paintMap(context, part, box);
    context.strokeStyle = colour("--line");
    context.strokeRect(...box);
    const bars = [left, top + 76 + MAP_TALL + 16, wide, BARS_TALL];
    paintWeightBars(context, part.attention(chosen.head), bars, 5);
    context.strokeRect(...bars);
    write(`layer ${part.number}, ${part.ending.counts[HELD]} of ${TOKENS} tokens in memory at the end`,
      left, bars[1] + BARS_TALL + 28, 18, "--soft");
  });
  const names = [["--held", "in memory"], ["--evicted", "evicted"], ["--refused", "refused"],
    ["--ahead", "not read yet"], ["--weight", "attention of the last query"]];
  let at = MARGIN;
  for (const [name, words] of names) {
    const y = sheet.height - 28;
    context.fillStyle = colour(name);
    context.fillRect(at, y - 17, 20, 20);
    context.strokeRect(at, y - 17, 20, 20);
    write(words, at + 28, y, 18, "--ink");
    at += 28 + context.measureText(words).width + 32;
  }
  write(`tokens from left to right, steps from top to bottom${TRACE.shared ? `; all memories ${TRACE.shared}` : ""}`,
    at, sheet.height - 28, 18, "--soft");
  return sheet;
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
