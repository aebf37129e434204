// What all sections share. What is shown of an answer is set as text, never as HTML.

export const $ = (id) => document.getElementById(id);
export const still = matchMedia("(prefers-reduced-motion: reduce)");
/** Below which the server's paths lie: it may be one of several of a cluster. */
const base = new URL("..", import.meta.url).pathname.replace(/\/$/, "");
const known = { token: sessionStorage.getItem("token") || "" };

export function keep(token) {
  known.token = token;
  sessionStorage.setItem("token", token);
}

export function make(tag, entries = {}, ...inside) {
  const element = Object.assign(document.createElement(tag), entries);
  element.append(...inside);
  return element;
}

export function say(place, text, bad = false) {
  place.textContent = text;
  place.classList.toggle("bad", bad);
}

export async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(known.token && { Authorization: `Bearer ${known.token}` }) };
  const answer = await fetch(base + path, { ...options, headers });
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  throw Object.assign(new Error(problem.detail || `the server answers ${answer.status}`), { status: answer.status });
}

/** Ask with the token for what a link leads to, in its place: a browser follows a link without it. */
export function follow(event) {
  if (!known.token) return;
  event.preventDefault();
  shown($("status"), async (signal) => {
    location = URL.createObjectURL(await (await ask(`/${event.target.getAttribute("href")}`, { signal })).blob());
  });
}

/** A file in as many answers as it takes: a long one is larger than one may be. `get` asks, and reads the answer. */
export async function whole(path, signal, get = (work) => work()) {
  const parts = [];
  let size = 0, total = 1;
  while (size < total) {
    const headers = { Range: `bytes=${size}-` };
    const [answer, part] = await get(async () => {
      const answer = await ask(path, { signal, headers });
      return [answer, await answer.blob()];
    });
    size += part.size;
    total = Number(answer.headers.get("Content-Range")?.split("/")[1] ?? size); // without it, it is all of the file
    parts.push(part);
  }
  return new Blob(parts, { type: parts[0].type });
}

/** Fill a select; what was chosen stays so where it is still there. */
export function choices(select, names) {
  const { value } = select;
  select.replaceChildren(...names.map((name) => make("option", { selected: name === value }, name)));
}

/** `renew` asks again what is served, and returns whether that is other than before; page.js sets it. */
export const served = { renew: async () => false };

/**
 * Run a person's work, one at a time for a place: what was begun before is cancelled, here and on the server. Where it
 * fails, the place says why, and the elements that show an earlier result go.
 */
const turns = new WeakMap();
export async function shown(place, work, ...results) {
  turns.get(place)?.abort();
  const turn = new AbortController();
  turns.set(place, turn);
  place.closest("section")?.setAttribute("aria-busy", "true");
  try {
    await work(turn.signal);
  } catch (error) {
    if (turn.signal.aborted) return;
    // The models may have been exchanged under an open page, and the digests that it knows be nobody's.
    const renewed = error.status === 404 && await served.renew().catch(() => false);
    if (turn.signal.aborted) return;
    for (const result of results) result.hidden = true;
    say(place, renewed ? "The server has other models now, and this page their list: please try again." : error.message, true);
  }
  if (turns.get(place) === turn) place.closest("section")?.removeAttribute("aria-busy");
}

/** A button that plays what a range input scrubs; it pauses at a second press. */
export function player(button, range, milliseconds, draw) {
  const film = { timer: 0, ends: false };
  const step = () => {
    const at = Number(range.value) + 1, last = Number(range.max);
    if (at > last && film.ends) return film.pause();
    range.value = at > last ? 0 : at;
    return draw();
  };
  film.pause = () => { clearInterval(film.timer); film.timer = 0; button.textContent = "Play"; };
  film.play = () => { film.pause(); film.timer = setInterval(step, milliseconds()); button.textContent = "Pause"; };
  button.addEventListener("click", () => {
    if (film.timer) return film.pause();
    if (Number(range.value) >= Number(range.max)) range.value = 0;
    return film.play();
  });
  range.addEventListener("input", () => { film.pause(); draw(); });
  return film;
}

/** Show a picture; it has its size when this is done, so that nothing moves later. */
export async function show(image, blob) {
  if (image.src) URL.revokeObjectURL(image.src);
  image.src = URL.createObjectURL(blob);
  await image.decode();
}

export const label = (model) => model.name.replaceAll("_", " ") + (model.variant ? ` · ${model.variant}` : "");
export const seconds = (since) => `${((performance.now() - since) / 1000).toFixed(2)} s`;
export const size = (bytes) => (bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(2)} MB`);
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
