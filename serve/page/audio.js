// Words in, recordings out, each with a player; a recording of one's own, where the server takes any.

import { $, ask, make, say, seconds, shown, whole } from "./common.js";

const LONGEST = 4 << 20; // bytes of a recording that are fetched to draw it
const decoder = new OfflineAudioContext(1, 1, 32000);

export function audio(models, paths) {
  $("add").hidden = !paths["/v1/audio"]?.post;
  $("ask").onsubmit = (event) => {
    event.preventDefault();
    search(new FormData(event.target).get("q"));
  };
  $("add").onsubmit = (event) => {
    event.preventDefault();
    const file = new FormData(event.target).get("file");
    shown($("heard"), async (signal) => {
      say($("heard"), `Listening to ${file.name} …`);
      const path = `/v1/audio?${new URLSearchParams({ name: file.name })}`;
      const added = await (await ask(path, { method: "POST", body: file, signal })).json();
      say($("heard"), `${added.file} is in the index, ${Number(added.seconds).toFixed(1)} s; a query finds it.`);
    });
  };
}

function search(words) {
  return shown($("heard"), async (signal) => {
    const since = performance.now();
    const { hits, p, verdict } = await (await ask(`/v1/audio?${new URLSearchParams({ q: words, top: 10 })}`, { signal })).json();
    say($("heard"), `${hits.length} recordings for “${words}”, in ${seconds(since)}; the best first.${note(verdict, p)}`);
    $("hits").replaceChildren(...hits.map(hit));
    $("hits").hidden = false;
    for (const [place, found] of hits.entries()) await draw(found, $("hits").children[place], signal);
  }, $("hits"));
}

function note(verdict, p) {
  return verdict === "doubtful" ? ` Perhaps not here: words at random find as much in ${(100 * p).toFixed(0)} % of cases.` : "";
}

// The wave of the recording's first megabytes, where the browser can decode them; nothing else waits for it.
async function draw(found, item, signal) {
  try {
    const headers = { Range: `bytes=0-${LONGEST - 1}` };
    const answer = await ask(`/v1/audio/${encodeURIComponent(found.id)}`, { signal, headers });
    const wave = (await decoder.decodeAudioData(await answer.arrayBuffer())).getChannelData(0);
    const canvas = make("canvas", { className: "wave", width: 400, height: 40 });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Wave of ${found.file}`);
    const pen = canvas.getContext("2d"), step = wave.length / 400;
    pen.fillStyle = getComputedStyle(item).color;
    const peaks = Array.from({ length: 400 }, (_, n) => wave.subarray(n * step, (n + 1) * step).reduce((most, x) => Math.max(most, Math.abs(x)), 0));
    const top = Math.max(...peaks, 1e-9);
    peaks.forEach((peak, n) => pen.fillRect(n, 20 - 19 * peak / top, 1, Math.max(38 * peak / top, 1)));
    item.append(canvas);
  } catch (error) {
    if (signal.aborted) throw error;
  }
}

/** A recording's path; pressed it is copied, where the browser has a clipboard: on plain http only localhost's has. */
function named(path) {
  if (!navigator.clipboard) return path;
  const button = make("button", { type: "button", className: "quiet copy", title: "Copy the path" }, path);
  button.addEventListener("click", () => navigator.clipboard.writeText(path).then(
    () => say($("heard"), `${path} is copied.`), (error) => say($("heard"), error.message, true)));
  return button;
}

function hit(found, place) {
  const button = make("button", { type: "button" }, "Play");
  button.setAttribute("aria-label", `Play ${found.file}`);
  const told = make("span", { className: "meta" });
  told.setAttribute("role", "status");
  const about = [`from ${found.offset.toFixed(0)} s`, `cosine ${found.score.toFixed(3)}`, ...(found.tags ?? [])].join(", ");
  const item = make("li", {}, make("small", {}, `${place + 1}`), make("span", {}, named(found.file), " ", make("small", {}, about), " ", told), button);
  // In a place of its own: the waves of the others are drawn on meanwhile.
  button.addEventListener("click", () => shown(told, async (signal) => {
    say(told, "Fetching …");
    const blob = await whole(`/v1/audio/${encodeURIComponent(found.id)}`, signal);
    const player = make("audio", { controls: true, src: URL.createObjectURL(blob) });
    player.setAttribute("aria-label", found.file);
    player.addEventListener("loadedmetadata", () => {
      player.currentTime = found.offset;
      if (player.isConnected) player.play().catch(() => {}); // else another search took its place
    });
    say(told, "");
    button.replaceWith();
    item.append(player);
    player.focus();
  }));
  return item;
}
