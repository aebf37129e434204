// A file in, its answer out, of models of tasks beside the papers'; shown where a browser can, and there to be saved.

import { $, ask, choices, label, say, seconds, show, shown } from "./common.js";

const LONGEST = 20000; // bytes of a text that are shown

export function others(models) {
  choices($("which"), models.map((model) => `${model.task} / ${label(model)}`));
  const chosen = () => models[$("which").selectedIndex];
  const read = () => { $("give").elements.file.accept = (chosen().about.files || []).join(","); };
  $("which").onchange = read;
  read();
  $("give").onsubmit = (event) => {
    event.preventDefault();
    const { file, set } = Object.fromEntries(new FormData(event.target));
    answer(chosen(), file, set.split(/\s+/).filter(Boolean));
  };
}

function answer(model, file, settings) {
  return shown($("answered"), async (signal) => {
    const since = performance.now();
    say($("answered"), `${label(model)} reads ${file.name} …`);
    const fields = [["file", file.name.slice(-200)], ["model", model.variant], ...settings.map((each) => ["set", each])];
    const path = `/v1/${model.task}/${encodeURIComponent(model.name)}?${new URLSearchParams(fields)}`;
    const response = await ask(path, { method: "POST", body: file, signal });
    const blob = await response.blob(), [kind] = blob.type.split("/");
    const text = kind === "text" || blob.type.startsWith("application/json");
    $("answer-text").textContent = text ? await blob.slice(0, LONGEST).text() : "";
    $("answer-text").hidden = !text;
    $("answer-picture").hidden = kind !== "image";
    if (kind === "image") await show($("answer-picture"), blob);
    const save = $("answer-save"), [, ending = ""] = /"answer(\.[^"]+)"/.exec(response.headers.get("Content-Disposition")) || [];
    if (save.href) URL.revokeObjectURL(save.href);
    Object.assign(save, { href: URL.createObjectURL(blob), download: `${file.name.replace(/\.[^.]+$/, "")}-answer${ending}` });
    $("answer").hidden = false;
    say($("answered"), `The answer to ${file.name}, in ${seconds(since)}.`);
  }, $("answer"));
}
