"use strict";
/* What the reader does: choose a policy, a layer, a step and a token. */

const $ = (id) => document.getElementById(id);
const chosen = { policy: TRACE.start, other: 0, layer: 0, step: 0, token: 0, head: -1 };
let playing = 0;

const policy = () => POLICIES[chosen.policy];
const layer = () => policy().layers[chosen.layer];
const other = () => POLICIES.length > 1 ? POLICIES[chosen.other] : null;
const within = (value, count) => Math.min(Math.max(Math.round(value) || 0, 0), count - 1);

function made(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

/* ------------------------------------------------------------------ parts of the page */

function buildPolicies() {
  POLICIES.forEach((one, number) => {
    const card = made("label", undefined, "card");
    const radio = made("input");
    radio.type = "radio";
    radio.name = "policy";
    radio.value = number;
    radio.addEventListener("change", () => choose({ policy: number }));
    const canvas = made("canvas");
    canvas.setAttribute("aria-hidden", "true");
    const mark = made("span", verdict(one), "verdict");
    judge(mark, one);
    card.title = one.name;
    card.append(radio, named(made("b"), one.short), mark, made("span", "", "hint"), canvas);
    $("policies").append(card);
  });
  POLICIES.forEach((one, number) => {
    const option = made("option", one.short);
    option.value = number;
    $("other").append(option);
  });
  $("beside").hidden = POLICIES.length < 2;
  // Beside the one that answers, one that does not.
  const wrong = POLICIES.findIndex((one) => one.right === false);
  chosen.other = wrong >= 0 && wrong !== chosen.policy ? wrong : chosen.policy === 0 ? 1 : 0;
  for (const { number, window: near } of POLICIES[0].layers) {
    const option = made("option", near ? `${number} (sliding window of ${near})` : number);
    option.value = $("layer").length;
    $("layer").append(option);
  }
  const top = POLICIES[0].layers.length - 1;
  $("layer-hint").textContent = top
    ? "0 reads the tokens; each layer above reads what the one below says of them." : "";
}

/* A name may be broken before its options, and nowhere else. */
function named(element, name) {
  element.replaceChildren(...name.split(/(?=\+)/).flatMap((part) => [
    made("wbr"), made("span", part, "part"),
  ]));
  return element;
}

function judge(element, one) {
  element.classList.toggle("right", one.right === true);
  element.classList.toggle("wrong", one.right === false);
}

function buildTable() {
  const body = $("table").tBodies[0];
  POLICIES.forEach((one, number) => {
    for (const [index, part] of one.layers.entries()) {
      const { counts, oldest, lived } = part.ending;
      const row = made("tr");
      row.dataset.policy = number;
      row.dataset.layer = index;
      row.append(made("th", one.short));
      row.firstChild.scope = "row";
      const next = one.next.filter(([, share], i) => i === 0 || share >= 0.005)
        .map(([word, share]) => `${word} ${percent(share)}`).join(", ");
      const cells = [
        part.window ? `${part.number} (window)` : part.number, counts[HELD], counts[EVICTED], counts[REFUSED],
        oldest < 0 ? "none" : `${oldest} ${quoted(oldest)}`, lived.toFixed(1), next || "none",
      ];
      row.append(...cells.map((cell) => made("td", cell)));
      body.append(row);
    }
  });
}

function showPolicies() {
  for (const [number, card] of [...$("policies").children].entries()) {
    const one = POLICIES[number];
    const part = one.layers[chosen.layer];
    card.querySelector("input").checked = number === chosen.policy;
    const { counts } = part.ending;
    const refused = counts[REFUSED] ? `, refused ${counts[REFUSED]}` : "";
    card.querySelector(".hint").textContent =
      `holds ${holds(one, part, counts[HELD])}${refused}`;
    drawMap(card.querySelector("canvas"), part);
  }
  for (const row of $("table").tBodies[0].rows) {
    const same = +row.dataset.policy === chosen.policy && +row.dataset.layer === chosen.layer;
    row.className = same ? "chosen" : "";
  }
}

/* One of the two maps. */
function showOne(canvas, one, prefix) {
  const part = one.layers[chosen.layer];
  drawMap(canvas, part);
  drawCursor(canvas, part, chosen.token, Math.min(chosen.step, part.steps - 1));
  canvas.setAttribute(
    "aria-label",
    `Survival map of ${one.short}, layer ${part.number}: ${TOKENS} tokens, ${part.steps} steps`,
  );
  $(`${prefix}last-token`).textContent = `token ${TOKENS - 1}`;
  $(`${prefix}last-step`).textContent = `step ${part.steps - 1}`;
  $(`${prefix}verdict`).textContent = verdict(one);
  judge($(`${prefix}verdict`), one);
}

function showMap() {
  named($("name"), policy().short);
  showOne($("map"), policy(), "");
  if (other()) {
    $("other").value = chosen.other;
    showOne($("other-map"), other(), "other-");
  }
  $("step").max = layer().steps - 1;
  $("step").value = chosen.step;
  $("position").max = TOKENS - 1;
  $("position").value = chosen.token;
  const read = Math.min((chosen.step + 1) * policy().chunk, TOKENS);
  const reading = Math.ceil(TOKENS / policy().chunk);
  const when = chosen.step < reading
    ? `${read} of ${TOKENS} tokens read` : "all read, waiting queries come out";
  $("step-text").textContent = `${chosen.step} of ${layer().steps - 1} (${when})`;
  $("step").setAttribute("aria-valuetext", `step ${chosen.step}, ${when}`);
  $("position-text").textContent = `${chosen.token} ${quoted(chosen.token)}`;
  $("position").setAttribute("aria-valuetext", `${chosen.token} ${quoted(chosen.token)}`);
  showDetail(chosen.token, chosen.step);
}

function showDetail(token, step, one = policy()) {
  const part = one.layers[chosen.layer];
  const state = part.state(token, step);
  const gone = part.gone[token];
  let life = `came at step ${part.born[token]}`;
  if (gone && part.reason[token] === REFUSED_REASON) life += ` and was refused at step ${gone - 1}`;
  else if (gone) life += ` and was evicted at step ${gone - 1} (${TRACE.reasons[part.reason[token]]})`;
  else life += " and is still in memory at the end";
  const { tokens, weights } = part.attention(chosen.head);
  const place = tokens.indexOf(token);
  const seen = place < 0 ? "The last query does not see it" :
    `The last query gives it ${percent(weights[place])} of its attention`;
  $("detail").textContent =
    `${one === policy() ? "" : `${one.short}: `}Token ${token} ${quoted(token)}, step ${step}: ` +
    `${TRACE.states[state]}. It ${life}. ${seen}.`;
}

/* What the last query attended to most. */
function strongest() {
  const { tokens, weights } = layer().attention(-1);
  return weights.length ? tokens[weights.indexOf(weights.reduce((a, b) => Math.max(a, b)))] : 0;
}

function showAttention() {
  const raw = layer().raw.attention;
  const heads = raw ? raw.heads : 0;
  chosen.head = Math.min(chosen.head, heads - 1);
  if ($("head").length !== heads + 1) {
    $("head").replaceChildren(...[...Array(heads + 1).keys()].map((h) => {
      const option = made("option", h ? `${h - 1}` : "all, mean");
      option.value = h - 1;
      return option;
    }));
  }
  $("head").value = chosen.head;
  const found = layer().attention(chosen.head);
  drawWeights($("attention"), found, chosen.token);
  $("last-attended").textContent = `token ${TOKENS - 1}`;
  const last = quoted(TOKENS - 1);
  $("attention-hint").textContent = raw
    ? `The query of token ${TOKENS - 1} ${last} attended at step ${raw.step}; its heads ` +
      `retrieved ${found.tokens.length} entries. Heights are square roots of the weights.`
    : "It attended to nothing in this layer.";
  $("attention").setAttribute("aria-label", `Attention of the last query in layer ${layer().number}`);
  const order = [...found.weights.keys()].sort((a, b) => found.weights[b] - found.weights[a]);
  $("strongest").replaceChildren(...order.slice(0, 9).filter((i) => found.weights[i] > 0).map((i) => {
    const token = found.tokens[i];
    const item = made("li");
    const button = made("button", `${quoted(token)}`);
    button.type = "button";
    button.addEventListener("click", () => choose({ token }));
    item.append(button, ` token ${token}: ${percent(found.weights[i])}`);
    return item;
  }));
}

/* ------------------------------------------------------------------ choosing */

function choose(change) {
  const atEnd = chosen.step === layer().steps - 1;
  const before = { ...chosen };
  Object.assign(chosen, change);
  chosen.policy = within(chosen.policy, POLICIES.length);
  chosen.other = within(chosen.other, POLICIES.length);
  chosen.layer = within(chosen.layer, policy().layers.length);
  // Whoever looks at the end wants to see the end of another policy, too.
  if (atEnd && !("step" in change)) chosen.step = layer().steps - 1;
  chosen.step = within(chosen.step, layer().steps);
  chosen.token = within(chosen.token, TOKENS);
  const other = before.policy !== chosen.policy || before.layer !== chosen.layer;
  if (other) showPolicies();
  show();
  if (before.token !== chosen.token) bringIntoView();
  remember();
}

function show() {
  $("layer").value = chosen.layer;
  showMap();
  showAttention();
  showWords();
}

/* The place in the page is in its address, so that it can be handed on. */
function remember() {
  const place = ["policy", "other", "layer", "step", "token"].map((name) => `${name}=${chosen[name]}`);
  try {
    history.replaceState(null, "", `#${place.join("&")}`);
  } catch {
    // Some browsers do not allow this for files; the page works without.
  }
}

function recall() {
  const wanted = {};
  for (const part of location.hash.slice(1).split("&")) {
    const [name, value] = part.split("=");
    if (["policy", "other", "layer", "step", "token"].includes(name) && value) wanted[name] = +value;
  }
  return wanted;
}

/* The token and the step under the pointer. */
function pointedAt(event, steps = layer().steps) {
  const box = event.currentTarget.getBoundingClientRect();
  const token = Math.floor(((event.clientX - box.left) / box.width) * TOKENS);
  const step = Math.floor(((event.clientY - box.top) / box.height) * steps);
  return { token: within(token, TOKENS), step: within(step, steps) };
}

function moveByKey(event) {
  const far = event.shiftKey ? 10 : 1;
  const moves = {
    ArrowLeft: { token: chosen.token - far }, ArrowRight: { token: chosen.token + far },
    ArrowUp: { step: chosen.step - far }, ArrowDown: { step: chosen.step + far },
    Home: { token: 0 }, End: { token: TOKENS - 1 },
    PageUp: { step: 0 }, PageDown: { step: layer().steps - 1 },
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  choose(moves[event.key]);
}

function play() {
  const stop = () => {
    clearInterval(playing);
    playing = 0;
    $("play").textContent = "Play";
  };
  if (playing) return stop();
  if (chosen.step === layer().steps - 1) choose({ step: 0 });
  $("play").textContent = "Pause";
  const pause = Math.max(40, Math.min(400, 12000 / layer().steps));
  playing = setInterval(() => {
    choose({ step: chosen.step + 1 });
    if (chosen.step >= layer().steps - 1) stop();
  }, pause);
  return undefined;
}

function listen() {
  $("layer").addEventListener("change", () => choose({ layer: +$("layer").value }));
  $("head").addEventListener("change", () => choose({ head: +$("head").value }));
  $("step").addEventListener("input", () => choose({ step: +$("step").value }));
  $("position").addEventListener("input", () => choose({ token: +$("position").value }));
  $("colour").addEventListener("change", showWords);
  $("only").addEventListener("change", () => turnTo(firstWord));
  $("play").addEventListener("click", play);
  $("save").addEventListener("click", savePicture);
  $("other").addEventListener("change", () => choose({ other: +$("other").value }));
  $("earlier").addEventListener("click", () => turnTo(firstWord - WINDOW));
  $("later").addEventListener("click", () => turnTo(firstWord + WINDOW));
  for (const [id, shown] of [["map", policy], ["other-map", other]]) {
    const under = (event) => pointedAt(event, shown().layers[chosen.layer].steps);
    $(id).addEventListener("pointermove", (event) => {
      const { token, step } = under(event);
      showDetail(token, step, shown());
    });
    $(id).addEventListener("pointerleave", () => showDetail(chosen.token, chosen.step));
    $(id).addEventListener("click", (event) => choose(under(event)));
    $(id).addEventListener("keydown", moveByKey);
  }
  $("attention").addEventListener("click", (event) => choose({ token: pointedAt(event).token }));
  $("words").addEventListener("click", (event) => {
    if (event.target.dataset.t) choose({ token: +event.target.dataset.t });
  });
  const redraw = () => { showPolicies(); show(); };
  let waiting = 0;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 100);
  });
  window.addEventListener("hashchange", () => choose(recall()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

document.querySelector("main").hidden = false;
$("title").textContent = TRACE.title;
$("shared").textContent = TRACE.shared ? `All memories: ${TRACE.shared}` : "";
buildPolicies();
buildTable();
chosen.layer = POLICIES[0].layers.length - 1;
chosen.step = layer().steps - 1;
chosen.token = strongest();
buildWords();
showPolicies();
listen();
choose(recall());
bringIntoView();
document.body.dataset.ready = "true";
