"use strict";
/* The data of the page: numbers as they were packed, and questions about them. */

const TRACE = JSON.parse(document.getElementById("data").textContent);
const [AHEAD, HELD, EVICTED, REFUSED] = [0, 1, 2, 3];
const REFUSED_REASON = TRACE.reasons.indexOf("refused");

/* Packed arrays are little-endian and so is every machine that runs browsers today. */
function unpacked(number) {
  const [width, text] = TRACE.packed[number];
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return new ({ 1: Uint8Array, 2: Uint16Array, 4: Uint32Array })[width](bytes.buffer);
}

/* The lives of all tokens in a layer. `gone` is 0 for what is still there, else the step + 1. */
class Layer {
  constructor(raw, steps) {
    this.number = raw.layer;
    this.room = raw.room;
    this.window = raw.window;
    this.steps = steps;
    this.raw = raw;
  }
  get born() { return this.once("born"); }
  get gone() { return this.once("gone"); }
  get reason() { return this.once("reason"); }
  once(name) {
    const value = unpacked(this.raw[name]);
    Object.defineProperty(this, name, { value });
    return value;
  }
  state(token, step) {
    if (this.born[token] > step) return AHEAD;
    const gone = this.gone[token];
    if (gone === 0 || gone - 1 > step) return HELD;
    return this.reason[token] === REFUSED_REASON ? REFUSED : EVICTED;
  }
  held(step) {
    let count = 0;
    for (let t = 0; t < this.born.length; t++) if (this.state(t, step) === HELD) count++;
    return count;
  }
  /* How it stands at the end. */
  get ending() {
    const counts = [0, 0, 0, 0];
    let oldest = -1;
    let lived = 0;
    for (let t = 0; t < this.born.length; t++) {
      const state = this.state(t, this.steps - 1);
      counts[state]++;
      if (state === HELD && oldest < 0) oldest = t;
      lived += (this.gone[t] === 0 ? this.steps : this.gone[t] - 1) - this.born[t];
    }
    const value = { counts, oldest, lived: lived / this.born.length };
    Object.defineProperty(this, "ending", { value });
    return value;
  }
  /* Weights of the last query, one for each token that it saw; head -1 is the mean. */
  attention(head) {
    const raw = this.raw.attention;
    if (!raw) return { tokens: [], weights: [] };
    if (!this.unpackedAttention) {
      this.unpackedAttention = [unpacked(raw.position), unpacked(raw.weight)];
    }
    const [tokens, all] = this.unpackedAttention;
    const weights = new Float64Array(tokens.length);
    const heads = head < 0 ? [...Array(raw.heads).keys()] : [head];
    for (const h of heads) {
      for (let i = 0; i < tokens.length; i++) {
        weights[i] += all[h * tokens.length + i] / 65535 / heads.length;
      }
    }
    return { tokens, weights };
  }
}

const POLICIES = TRACE.policies.map((raw) => ({
  ...raw,
  layers: raw.layers.map((layer) => new Layer(layer, raw.steps)),
}));
const TOKENS = TRACE.words.length;

function percent(share) {
  if (share < 0.00005) return share > 0 ? "under 0.01\u00a0%" : "0\u00a0%";
  const digits = share >= 0.0995 ? 0 : share >= 0.00995 ? 1 : 2;
  return `${(100 * share).toFixed(digits)}\u00a0%`;
}

/* What a memory answers, and whether that is right, if anybody knows. */
function verdict(one) {
  if (!one.next.length) return "";
  const mark = one.right === null ? "next:" : one.right ? "\u2713 answers" : "\u2717 answers";
  return `${mark} ${one.next[0][0]}, ${percent(one.next[0][1])}`;
}

/* How many tokens a layer holds, and how many there is room for. */
function holds(one, part, count) {
  if (one.full && !part.window && count === TOKENS) return `all ${TOKENS} tokens`;
  // Lines are not broken inside of M + S.
  const room = part.room.replace(/ ([=+]) /g, "\u00a0$1\u00a0");
  return `${count} of ${TOKENS} tokens${one.full && !part.window ? "" : ` (${room})`}`;
}

/* What M + S and a number for each head mean, where a memory has them. */
function roomExplained(one, part) {
  if (part.window) return " That is what the queries of a chunk see, each with a window of its own.";
  if (one.full) return "";
  const chunk = one.visible
    ? ` The S\u00a0=\u00a0${one.chunk} of the last chunk compete in the next step.` : "";
  const heads = one.perHead
    ? " Every head keeps its own, and a token counts while any head keeps it." : "";
  return chunk + heads;
}

/* A word as it is shown by itself: quoted, line breaks as a sign. */
function quoted(token) {
  const word = TRACE.words[token].replace(/\n/g, "\u21b5").replace(/\s+/g, " ");
  return word.trim() ? `“${word.trim()}”` : word ? "(space)" : "(no text)";
}
