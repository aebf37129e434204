// Asks the server that it came from, and nothing else.

import { $, ask, follow, keep, label, make, say, served } from "./common.js";
import { audio } from "./audio.js";
import { others } from "./others.js";
import { policies } from "./rl.js";
import { styles } from "./style.js";
import { tables } from "./tables.js";
import { weather } from "./weather.js";

const known = { models: [] };
const sections = { style: styles, audio, weather, rl: policies, others };
const section = (model) => (Object.hasOwn(sections, model.task) ? model.task : "others");

/** Ask what is served, and open the sections of it that are new; return whether there are any. */
served.renew = async () => {
  const models = await (await ask("/v1/models")).json(), before = known.models;
  const same = (test) => JSON.stringify(models.filter(test)) === JSON.stringify(before.filter(test));
  if (before.length && same(() => true)) return false;
  const { paths } = await (await ask("/openapi.json")).json();
  $("token").hidden = true;
  known.models = models;
  say($("status"), `${models.length === 1 ? "1 model is" : `${models.length} models are`} served here.`);
  for (const [name, open] of Object.entries(sections)) {
    const own = models.filter((model) => section(model) === name);
    reveal(name, own.length > 0);
    if (own.length && !same((model) => section(model) === name)) open(own, paths);
  }
  list(models);
  if ("/v1/tables" in paths) reveal("tables", await tables(models));
  return true;
};

async function start() {
  try {
    await served.renew();
  } catch (error) {
    $("token").hidden = error.status !== 401;
    say($("status"), error.message, error.status !== 401);
    if (error.status === 401) $("token").querySelector("input").focus();
  }
}

function reveal(name, there) {
  $(name).hidden = !there;
  document.querySelector(`nav a[href="#${name}"]`).hidden = !there;
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
for (const link of document.querySelectorAll("#models p a")) link.addEventListener("click", follow);
start();
