// Words in, recordings out, each with a player; a recording of one's own, where the server takes any.

import { $, ask, make, say, seconds, shown } from "./common.js";

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
    say($("heard"), `${judged(verdict, p)}${hits.length} recordings for “${words}”, in ${seconds(since)}; the best first.`);
    $("hits").replaceChildren(...hits.map(hit));
    $("hits").hidden = false;
  }, $("hits"));
}

function judged(verdict, p) {
  const random = `words at random find as much in ${(100 * p).toFixed(0)} % of cases`;
  if (verdict === "nothing") return `Nothing here sounds like that (${random}). All the same: `;
  return verdict === "doubtful" ? `Doubtful: ${random}. ` : "";
}

function hit(found, place) {
  const button = make("button", { type: "button" }, "Play");
  button.setAttribute("aria-label", `Play ${found.file}`);
  const item = make("li", {}, make("small", {}, `${place + 1}`),
    make("span", {}, found.file, " ", make("small", {}, `from ${found.offset.toFixed(0)} s, cosine ${found.score.toFixed(3)}`)), button);
  button.addEventListener("click", () => shown($("heard"), async (signal) => {
    const blob = await (await ask(`/v1/audio/${encodeURIComponent(found.id)}`, { signal })).blob();
    const player = make("audio", { controls: true, src: URL.createObjectURL(blob) });
    player.setAttribute("aria-label", found.file);
    player.addEventListener("loadedmetadata", () => { player.currentTime = found.offset; player.play().catch(() => {}); });
    button.replaceWith();
    item.append(player);
    player.focus();
  }));
  return item;
}
