// Asks the server that it came from, and nothing else.

import { $, ask, keep, label, make, say } from "./common.js";
import { audio } from "./audio.js";
import { policies } from "./rl.js";
import { styles } from "./style.js";
import { tables } from "./tables.js";
import { weather } from "./weather.js";

async function start() {
  try {
    const models = await (await ask("/v1/models")).json();
    const { paths } = await (await ask("/openapi.json")).json();
    $("token").hidden = true;
    say($("status"), `${models.length === 1 ? "1 model is" : `${models.length} models are`} served here.`);
    for (const [task, open] of Object.entries({ style: styles, audio, weather, rl: policies })) {
      const own = models.filter((model) => model.task === task);
      reveal(task, own.length > 0);
      if (own.length) open(own, paths);
    }
    list(models);
    if ("/v1/tables" in paths) reveal("tables", await tables(models));
  } catch (error) {
    $("token").hidden = error.status !== 401;
    say($("status"), error.message, error.status !== 401);
    if (error.status === 401) $("token").querySelector("input").focus();
  }
}

function reveal(section, there) {
  $(section).hidden = !there;
  document.querySelector(`nav a[href="#${section}"]`).hidden = !there;
}

function list(models) {
  reveal("models", true);
  $("rows").replaceChildren(...models.map((model) => make("tr", { id: `model-${model.sha256}` },
    make("th", { scope: "row" }, `${model.task} / ${label(model)}`), make("td", {}, model.why),
    make("td", {}, String(model.about.data_description || model.about.data || "")),
    make("td", {}, String(model.about.scale || "")),
    make("td", {}, make("code", {}, String(model.about.fingerprint || "").slice(0, 8))),
    make("td", {}, make("code", { title: model.sha256 }, model.sha256.slice(0, 8))))));
}

$("token").addEventListener("submit", (event) => {
  event.preventDefault();
  keep(new FormData(event.target).get("token").trim());
  start();
});
start();
