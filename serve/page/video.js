// A video is a job: sent, watched, cancelled or played.

import { $, ask, say, shown } from "./common.js";

const PAUSE = 700, OVER = ["done", "failed", "cancelled"];
const job = { id: "" };

export function video(model, paths) {
  $("video").hidden = !("/v1/style/{style}/video" in paths);
  $("film").onsubmit = (event) => {
    event.preventDefault();
    const file = new FormData(event.target).get("file");
    shown($("filmed"), (signal) => run(model(), file, signal), $("filmed-video"), $("film-save"));
  };
}

/** What is set above for photographs. */
const painting = () => ({ strength: $("strength").value / 100, colours: $("colours").checked ? "original" : "style" });

function line({ state, ahead, frames, frames_total: all, seconds_left: left }) {
  const done = frames ? `, ${frames}${all ? ` of ${all}` : ""} frames` : "";
  return `${state}${ahead ? `, ${ahead} before it` : ""}${done}${left ? `, about ${Math.ceil(left)} s left` : ""}`;
}

/** A file in as many answers as it takes: a long video is larger than one may be. */
async function whole(path, signal) {
  const parts = [];
  let size = 0;
  let total = 1;
  let type = "";
  while (size < total) {
    const answer = await ask(path, { signal, headers: { Range: `bytes=${size}-` } });
    const part = await answer.blob();
    total = Number(answer.headers.get("Content-Range").split("/")[1]);
    type = part.type;
    size += part.size;
    parts.push(part);
  }
  return new Blob(parts, { type });
}

async function run(model, file, signal) {
  say($("filmed"), "Sending …");
  $("filmed-video").hidden = $("film-save").hidden = true;
  const path = `/v1/style/${encodeURIComponent(model.name)}/video?${new URLSearchParams({ model: model.sha256, ...painting() })}`;
  const { id } = await (await ask(path, { method: "POST", body: file, signal })).json();
  job.id = id;
  $("working").hidden = false;
  try {
    let told = {};
    while (!OVER.includes(told.state)) {
      told = await (await ask(`/v1/jobs/${encodeURIComponent(id)}`, { signal })).json();
      $("progress").value = told.progress || 0;
      say($("filmed"), line(told));
      await new Promise((done) => { setTimeout(done, PAUSE); });
    }
    if (told.state !== "done") throw new Error(told.detail || `the video is ${told.state}`);
    const blob = await whole(`/v1/jobs/${encodeURIComponent(id)}/file`, signal);
    $("filmed-video").src = $("film-save").href = URL.createObjectURL(blob);
    $("filmed-video").hidden = $("film-save").hidden = false;
    say($("filmed"), "The video is painted; the server keeps it for a day at most.");
  } finally {
    $("working").hidden = true;
  }
}

$("cancel").addEventListener("click", () => shown($("filmed"), async () => {
  await ask(`/v1/jobs/${encodeURIComponent(job.id)}`, { method: "DELETE" });
  $("working").hidden = true;
  say($("filmed"), "Cancelled.");
}));
