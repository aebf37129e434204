"use strict";
// Asks the server that it came from, and nothing else. What it shows of an answer it sets as text, never as HTML.

const $ = (id) => document.getElementById(id);
const LONGER = 1024, SMALL = 320;
let token = sessionStorage.getItem("token") || "";

function make(tag, entries = {}, ...inside) {
  const element = Object.assign(document.createElement(tag), entries);
  element.append(...inside);
  return element;
}

function say(place, text, bad = false) {
  place.textContent = text;
  place.classList.toggle("bad", bad);
}

async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) };
  const answer = await fetch(path, { ...options, headers });
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  throw Object.assign(new Error(problem.detail || `the server answers ${answer.status}`), { status: answer.status });
}

/** Run work of a person's, one at a time for a place: what was begun later wins. */
const turns = new Map();
async function shown(place, work) {
  const turn = (turns.get(place) || 0) + 1;
  turns.set(place, turn);
  const current = () => turns.get(place) === turn;
  try {
    await work(current);
  } catch (error) {
    if (current()) say(place, error.message, true);
  }
}

const label = (model) => model.name.replaceAll("_", " ") + (model.variant ? ` · ${model.variant}` : "");
const seconds = (since) => `${((performance.now() - since) / 1000).toFixed(2)} s`;

async function start() {
  try {
    const models = await (await ask("/v1/models")).json();
    $("token").hidden = true;
    const count = models.length === 1 ? "1 model is" : `${models.length} models are`;
    say($("status"), `${count} served here.`);
    const of = (task) => models.filter((model) => model.task === task);
    for (const [task, open] of Object.entries({ style: styles, audio, weather, rl: policies })) {
      $(task).hidden = !of(task).length;
      document.querySelector(`nav a[href="#${task}"]`).hidden = !of(task).length;
      if (of(task).length) open(of(task));
    }
    list(models);
  } catch (error) {
    $("token").hidden = error.status !== 401;
    say($("status"), error.message, error.status !== 401);
  }
}

function list(models) {
  $("models").hidden = false;
  $("rows").replaceChildren(...models.map((model) => make("tr", {},
    make("td", {}, `${model.task} / ${label(model)}`), make("td", {}, model.why),
    make("td", {}, String(model.about.data_description || model.about.data || "")),
    make("td", {}, model.about.scale || ""),
    make("td", {}, make("code", {}, String(model.about.fingerprint || "").slice(0, 8))),
    make("td", {}, make("code", { title: model.sha256 }, model.sha256.slice(0, 8))))));
}

// Style

const picture = { blob: null, model: null };

function styles(models) {
  $("styles").replaceChildren(...models.map((model) => {
    const button = make("button", { type: "button" }, ...(models.length > 1 ? [make("i")] : []), label(model));
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => choose(model, button));
    return button;
  }));
  picture.models = models;
  picture.model = models[0];
  $("styles").firstChild.setAttribute("aria-pressed", "true");
}

function choose(model, button) {
  for (const other of $("styles").children) other.setAttribute("aria-pressed", String(other === button));
  picture.model = model;
  paint();
}

async function reduced(file) {
  const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
  const scale = Math.min(1, LONGER / Math.max(bitmap.width, bitmap.height));
  const canvas = make("canvas", { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.93));
}

function take(file) {
  return shown($("painted"), async () => {
    $("compare").hidden = false;
    picture.blob = await reduced(file).catch(() => { throw new Error("the browser cannot read this file as a picture"); });
    show($("before"), picture.blob);
    $("after").removeAttribute("src");
    await paint();
    await thumbnails();
  });
}

function stylised(model, size) {
  const query = new URLSearchParams({ size, model: model.sha256, strength: $("strength").value / 100,
    colours: $("colours").checked ? "original" : "style", format: size === SMALL ? "jpeg" : "png" });
  return ask(`/v1/style/${encodeURIComponent(model.name)}?${query}`, { method: "POST", body: picture.blob });
}

function paint() {
  if (!picture.blob) return undefined;
  return shown($("painted"), async (current) => {
    const since = performance.now();
    say($("painted"), `Painting in the style of ${label(picture.model)} …`);
    const blob = await (await stylised(picture.model, 0)).blob();
    if (!current()) return;
    show($("after"), blob);
    $("save").href = $("after").src;
    say($("painted"), `${label(picture.model)}, in ${seconds(since)}`);
  });
}

async function thumbnails() {
  if (picture.models.length < 2) return;
  for (const [place, model] of picture.models.entries()) {
    const image = make("img", { alt: "" });
    show(image, await (await stylised(model, SMALL)).blob());
    $("styles").children[place].firstChild.replaceWith(image);
  }
}

function show(image, blob) {
  if (image.src) URL.revokeObjectURL(image.src);
  image.src = URL.createObjectURL(blob);
}

function slide() {
  $("after").style.clipPath = `inset(0 0 0 ${$("slide").value}%)`;
  $("edge").style.left = `${$("slide").value}%`;
}

// Audio

function audio() {
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    const words = new FormData(event.target).get("q");
    shown($("heard"), async (current) => {
      const since = performance.now();
      const { hits } = await (await ask(`/v1/audio?${new URLSearchParams({ q: words, top: 10 })}`)).json();
      if (!current()) return;
      say($("heard"), `${hits.length} recordings, in ${seconds(since)}`);
      $("hits").replaceChildren(...hits.map(hit));
    });
  });
}

function hit(found, place) {
  const button = make("button", { type: "button" }, "Play");
  button.setAttribute("aria-label", `Play ${found.file}`);
  const item = make("li", {}, make("small", {}, `${place + 1}`),
    make("span", {}, found.file, " ", make("small", {}, `from ${found.offset.toFixed(0)} s, cosine ${found.score.toFixed(3)}`)), button);
  button.addEventListener("click", () => shown($("heard"), async () => {
    const blob = await (await ask(`/v1/audio/${found.id}`)).blob();
    const player = make("audio", { controls: true, src: URL.createObjectURL(blob) });
    player.addEventListener("loadedmetadata", () => { player.currentTime = found.offset; player.play(); });
    button.replaceWith();
    item.append(player);
  }));
  return item;
}

// Weather

const film = { steps: null, size: 0, timer: 0 };
const RAMP = [[242, 245, 250], [156, 196, 255], [47, 111, 224], [42, 29, 122]];

function weather(models) {
  const regions = models[0].about.regions || [""];
  document.querySelector("#forecast select").replaceChildren(...regions.map((region) => make("option", {}, region)));
  $("forecast").addEventListener("submit", (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    shown($("foretold"), async (current) => {
      const since = performance.now();
      say($("foretold"), "Forecasting …");
      const query = new URLSearchParams({ region: form.get("region") });
      const answer = await ask(`/v1/weather?${query}`, { method: "POST", body: form.get("file") });
      const { probability, minutes } = await npz(await answer.arrayBuffer());
      if (!current()) return;
      Object.assign(film, { steps: probability.data, size: probability.shape[1], minutes: minutes.data });
      Object.assign($("time"), { max: probability.shape[0] - 1, value: 0 });
      Object.assign($("map"), { width: film.size, height: film.size });
      $("scrub").hidden = false;
      say($("foretold"), `${probability.shape[0]} lead times, in ${seconds(since)}`);
      frame();
    });
  });
}

/** Read arrays of bytes and of 32-bit integers out of an npz file. */
async function npz(buffer) {
  const view = new DataView(buffer), found = {};
  let end = buffer.byteLength - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end -= 1;
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left -= 1) {
    const [packed, name, extra, remark] = [view.getUint32(at + 20, true), ...[28, 30, 32].map((o) => view.getUint16(at + o, true))];
    const local = view.getUint32(at + 42, true);
    const data = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const title = new TextDecoder().decode(new Uint8Array(buffer, at + 46, name)).replace(".npy", "");
    const stream = new Blob([new Uint8Array(buffer, data, packed)]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    found[title] = npy(await new Response(stream).arrayBuffer());
    at += 46 + name + extra + remark;
  }
  return found;
}

function npy(buffer) {
  const length = new DataView(buffer).getUint16(8, true);
  const header = new TextDecoder().decode(new Uint8Array(buffer, 10, length));
  const shape = header.match(/'shape': \(([^)]*)\)/)[1].split(",").filter((word) => word.trim()).map(Number);
  const kind = header.includes("|u1") ? Uint8Array : Int32Array;
  return { shape, data: new kind(buffer.slice(10 + length)) };
}

function colour(share) {
  const place = Math.min(RAMP.length - 1.001, share * (RAMP.length - 1)), low = Math.floor(place);
  return RAMP[low].map((value, i) => value + (place - low) * (RAMP[low + 1][i] - value));
}

function frame() {
  const lead = Number($("time").value), area = film.size ** 2;
  const context = $("map").getContext("2d"), image = context.createImageData(film.size, film.size);
  for (let pixel = 0; pixel < area; pixel += 1) image.data.set([...colour(film.steps[lead * area + pixel] / 200), 255], 4 * pixel);
  context.putImageData(image, 0, 0);
  $("lead").textContent = `+${Math.floor(film.minutes[lead] / 60)} h ${String(film.minutes[lead] % 60).padStart(2, "0")}`;
}

function play() {
  const on = !film.timer;
  clearInterval(film.timer);
  film.timer = on ? setInterval(() => { $("time").value = (Number($("time").value) + 1) % (Number($("time").max) + 1); frame(); }, 250) : 0;
  $("play").textContent = on ? "Pause" : "Play";
}

// Policies

function policies(models) {
  const names = [...new Set(models.map((model) => model.name))];
  $("environment").replaceChildren(...names.map((name) => make("option", {}, name)));
  const draw = () => act(models.filter((model) => model.name === $("environment").value));
  $("draw").addEventListener("click", () => { $("seed").value = Math.floor(Math.random() * 10000); draw(); });
  for (const id of ["environment", "seed"]) $(id).addEventListener("change", draw);
  draw();
}

/** Standard normal numbers by a seed: a linear congruential generator and Box and Muller. */
function normal(count, seed) {
  let state = (seed * 2654435761 + 1) >>> 0;
  const uniform = () => { state = (Math.imul(state, 1664525) + 1013904223) >>> 0; return (state + 1) / 4294967297; };
  return Array.from({ length: count }, () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()));
}

function act(models) {
  return shown($("acted"), async (current) => {
    const seed = Number($("seed").value) || 0, row = normal(models[0].about.states, seed);
    const cards = await Promise.all(models.map(async (model) => {
      const since = performance.now();
      const body = JSON.stringify({ observations: [row], seed });
      const path = `/v1/rl/${encodeURIComponent(model.name)}?${new URLSearchParams({ model: model.sha256 })}`;
      const answer = await ask(path, { method: "POST", body, headers: { "Content-Type": "application/json" } });
      const { actions } = await answer.json();
      return make("article", { className: "card" }, make("h3", {}, model.variant || model.name),
        make("p", { className: "meta" }, `in ${seconds(since)}`), ...actions[0].map(bar));
    }));
    if (!current()) return;
    say($("acted"), `An observation of ${row.length} numbers, drawn by seed ${seed}; actions are between −1 and 1.`);
    $("actions").replaceChildren(...cards);
  });
}

function bar(value, place) {
  const inner = make("i");
  inner.style.left = `${50 + 50 * Math.min(0, Math.max(-1, value))}%`;
  inner.style.width = `${50 * Math.min(1, Math.abs(value))}%`;
  return make("div", { className: "act" }, make("span", {}, String(place + 1)), make("span", { className: "track" }, inner),
    make("span", {}, value.toFixed(3)));
}

$("token").addEventListener("submit", (event) => {
  event.preventDefault();
  token = new FormData(event.target).get("token").trim();
  sessionStorage.setItem("token", token);
  start();
});
$("photograph").addEventListener("change", (event) => event.target.files[0] && take(event.target.files[0]));
$("example").addEventListener("click", async () => take(await (await fetch("/page/example.jpg")).blob()));
for (const kind of ["dragover", "dragleave", "drop"]) {
  $("drop").addEventListener(kind, (event) => { event.preventDefault(); $("drop").classList.toggle("over", kind === "dragover"); });
}
$("drop").addEventListener("drop", (event) => event.dataTransfer.files[0] && take(event.dataTransfer.files[0]));
$("slide").addEventListener("input", slide);
for (const id of ["colours", "strength"]) $(id).addEventListener("change", paint);
$("time").addEventListener("input", frame);
$("play").addEventListener("click", play);
slide();
start();
