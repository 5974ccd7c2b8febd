"use strict";
/* The text, a part at a time, and what the memory has of it. */

const WINDOW = 3000; // words that are shown at once
let firstWord = 0;
let shownWords = new Map(); // token to its element
let shownStates = new Map(); // token to the state that its element shows

/* The tokens that are shown: a part of the text, or what is in memory now, wherever it stands. */
function listed() {
  const stop = Math.min(firstWord + WINDOW, TOKENS);
  const tokens = [];
  if (!$("only").checked) for (let t = firstWord; t < stop; t++) tokens.push(t);
  else for (let t = 0; t < TOKENS; t++) if (layer().state(t, chosen.step) === HELD) tokens.push(t);
  $("pages").hidden = TOKENS <= WINDOW || $("only").checked;
  $("page-text").textContent = `tokens ${firstWord} to ${stop - 1} of ${TOKENS}`;
  $("earlier").disabled = firstWord === 0;
  $("later").disabled = stop === TOKENS;
  return tokens;
}

function buildWords() {
  const pieces = document.createDocumentFragment();
  shownWords = new Map();
  shownStates = new Map();
  let before = $("only").checked ? -1 : firstWord - 1;
  for (const t of listed()) {
    if (t !== before + 1) pieces.append(made("i", " … "));
    const word = made("span", TRACE.words[t].replace(/\n/g, "\u21b5\n") || "·", TRACE.words[t] ? "" : "nothing");
    word.dataset.t = t;
    pieces.append(word);
    shownWords.set(t, word);
    before = t;
  }
  if ($("only").checked && before < TOKENS - 1) pieces.append(made("i", " …"));
  $("words").replaceChildren(pieces);
}

function showWords() {
  const byWeight = $("colour").value === "attention";
  const part = layer();
  if ($("only").checked) buildWords();
  for (const [t, span] of shownWords) {
    const state = part.state(t, chosen.step);
    const old = shownStates.get(t);
    if (state === old) continue;
    if (old !== undefined) span.classList.remove(`s${old}`);
    span.classList.add(`s${state}`);
    span.title = `token ${t}: ${TRACE.states[state]}`;
    shownStates.set(t, state);
  }
  $("words").classList.toggle("attention", byWeight);
  for (const span of $("words").querySelectorAll("[style]")) span.removeAttribute("style");
  if (byWeight) paintWeights();
  $("words").querySelector(".cursor")?.classList.remove("cursor");
  shownWords.get(chosen.token)?.classList.add("cursor");
  const held = part.held(chosen.step);
  $("text-step").textContent = chosen.step;
  $("text-count").textContent =
    `${policy().short}, layer ${part.number}: ${holds(policy(), part, held)} in memory.` +
    roomExplained(policy(), part);
  $("text-count").dataset.held = held;
}

function paintWeights() {
  const { tokens, weights } = layer().attention(chosen.head);
  const top = weights.reduce((a, b) => Math.max(a, b), 0) || 1;
  const [r, g, b] = channels("--weight");
  for (let i = 0; i < tokens.length; i++) {
    const span = shownWords.get(tokens[i]);
    if (!span || !weights[i]) continue;
    const share = 0.08 + 0.6 * Math.sqrt(weights[i] / top);
    span.style.backgroundColor = `rgba(${r}, ${g}, ${b}, ${share.toFixed(3)})`;
    span.style.opacity = 1;
  }
}

function turnTo(first) {
  firstWord = Math.max(0, Math.min(first, TOKENS - 1));
  buildWords();
  showWords();
}

function bringIntoView() {
  if (!shownWords.has(chosen.token) && !$("only").checked) {
    turnTo(Math.floor(chosen.token / WINDOW) * WINDOW);
  }
  const word = shownWords.get(chosen.token);
  if (!word) return;
  // Scroll the text, never the page.
  const above = word.offsetTop - $("words").offsetTop;
  const { scrollTop, clientHeight } = $("words");
  if (above < scrollTop || above > scrollTop + clientHeight - 40) {
    $("words").scrollTop = above - clientHeight / 2;
  }
}
