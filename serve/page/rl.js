// Policies of one environment play the same episode, beside each other; MuJoCo's bodies are drawn as lines.

import { $, ask, choices, colour, make, player, say, seconds, shown, size, still } from "./common.js";

const WIDE = 640, HIGH = 300, SPAN = 4200;
const told = { acts: [], pause: 50 };
const film = player($("run-play"), $("step"), () => told.pause, () => told.acts.forEach(draw));
film.ends = true;

export function policies(models) {
  const names = [...new Set(models.map((model) => model.name))];
  choices($("environment"), names);
  $("simulate").onsubmit = (event) => {
    event.preventDefault();
    const own = models.filter((model) => model.name === $("environment").value);
    const asked = Object.fromEntries(new FormData(event.target));
    shown($("acted"), (signal) => run(own, asked, signal), $("runs"), $("watch"));
  };
}

async function run(models, { seed, steps }, signal) {
  const since = performance.now();
  film.pause();
  say($("acted"), `${models.length === 1 ? "The policy plays" : `${models.length} policies play`} ${steps} steps in MuJoCo …`);
  const acts = [], failed = [];
  // One after the other, as the server plays them; of many at once it refuses some.
  for (const [place, model] of models.entries()) {
    const query = new URLSearchParams({ model: model.sha256, seed, steps });
    const path = `/v1/rl/${encodeURIComponent(model.name)}/episode?${query}`;
    try {
      acts.push(act(model, await (await ask(path, { method: "POST", signal })).json()));
    } catch (error) {
      if (signal.aborted || !acts.length || error.status === 404) throw error;
      failed.push(` ${called(model)}: ${error.message}.`);
    }
    present(acts, models.slice(place + 1));
    say($("acted"), `${acts.length} of ${models.length} have played …${failed.join("")}`);
  }
  const best = acts.map((each) => `${each.name} ${each.played.return.toFixed(0)}`).join(", ");
  say($("acted"), `Return over ${steps} steps with seed ${seed}: ${best}.${failed.join("")} Played in ${seconds(since)}.`);
  $("step").value = 0;
  told.acts.forEach(draw);
  if (!still.matches) film.play();
}

const called = (model) => model.variant || model.name;

/** Show the policies that have played so far, and places for those to come, so that nothing changes its size. */
function present(acts, rest) {
  const longest = acts.reduce((one, other) => (other.played.steps > one.played.steps ? other : one)).played;
  told.acts = acts;
  told.pause = Math.max(20, 1000 * longest.every * longest.seconds_per_step || 50);
  $("step").max = Math.max(0, longest.frames.length - 1);
  if (acts.length === 1) $("step").value = 0;
  $("runs").replaceChildren(...acts.map((each) => each.card),
    ...rest.map((model) => make("article", { className: "card" }, make("h3", {}, called(model)))));
  $("watch").hidden = !longest.frames.length;
  $("runs").hidden = false;
  acts.forEach(draw);
}

/** What is shown of one policy: its card, and the return after each step. */
function act(model, played) {
  const canvas = make("canvas", { width: WIDE, height: HIGH, className: "stage" });
  canvas.setAttribute("role", "img");
  const name = called(model), count = played.weights.toLocaleString("en");
  const kept = `${count} weights (${((100 * played.weights) / played.weights_of).toFixed(1)} %), ${size(played.bytes)}`;
  const output = make("b", {}), at = make("span", { className: "meta" });
  let sum = 0;
  const returns = played.rewards.map((reward) => { sum += reward; return sum; });
  const card = make("article", { className: "card" }, make("h3", {}, name), make("p", { className: "meta" }, kept), canvas,
    make("p", { className: "score" }, output, " ", at));
  return { name, played, returns, canvas, output, at, card };
}

function draw({ name, played, returns, canvas, output, at }) {
  if (!played.frames.length) return;
  const place = Math.min(Number($("step").value), played.frames.length - 1);
  const step = Math.min(place * played.every, returns.length - 1), points = played.frames[place];
  const middle = (axis) => points.reduce((sum, value, i) => sum + (i % 2 === axis ? value : 0), 0) / (points.length / 2);
  const [x, y] = [middle(0), played.ground === null ? middle(1) : played.ground + SPAN * 0.155];
  const scale = canvas.width / SPAN;
  const left = (value) => (value - x) * scale + canvas.width / 2;
  const top = (value) => canvas.height * 0.5 - (value - y) * scale;
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (played.ground !== null) floor(context, played.ground, x, left, top);
  played.bodies.forEach((body, i) => {
    const [x1, y1, x2, y2] = points.slice(4 * i, 4 * i + 4);
    context.beginPath();
    context.lineCap = body.round ? "round" : "butt";
    context.lineWidth = Math.max(2, 2 * body.radius * scale);
    context.strokeStyle = colour(i % 2 ? "--body" : "--accent");
    context.moveTo(left(x1), top(y1));
    context.lineTo(left(x2) + 0.01, top(y2));
    context.stroke();
  });
  const done = place === played.frames.length - 1 && played.end === "fell" ? ", fell" : "";
  output.textContent = `Return ${returns[step].toFixed(1)}`;
  at.textContent = `after ${step + 1} steps, at ${(x / 1000).toFixed(1)} m${done}`;
  canvas.setAttribute("aria-label", `${name} after ${step + 1} steps: return ${returns[step].toFixed(0)}, at ${(x / 1000).toFixed(1)} m`);
}

/** The floor, with a mark at each metre. */
function floor(context, ground, x, left, top) {
  context.fillStyle = colour("--tint");
  context.fillRect(0, top(ground), context.canvas.width, context.canvas.height);
  context.fillStyle = context.strokeStyle = colour("--faint");
  context.lineWidth = 1.5;
  context.font = "20px system-ui, sans-serif";
  context.textAlign = "center";
  context.beginPath();
  context.moveTo(0, top(ground));
  context.lineTo(context.canvas.width, top(ground));
  for (let metre = Math.ceil((x - SPAN / 2) / 1000); metre <= (x + SPAN / 2) / 1000; metre += 1) {
    context.moveTo(left(1000 * metre), top(ground));
    context.lineTo(left(1000 * metre), top(ground) + 9);
    context.fillText(`${metre} m`, left(1000 * metre), top(ground) + 32);
  }
  context.stroke();
}

$("another").addEventListener("click", () => {
  $("seed").value = Math.floor(Math.random() * 10000);
  $("simulate").requestSubmit();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => told.acts.forEach(draw));
