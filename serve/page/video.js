// A video is a job: sent, watched, cancelled or played.

import { $, ask, say, shown, whole } from "./common.js";

const PAUSE = 700, LONGEST = 16 * PAUSE, OVER = ["done", "failed", "cancelled"];
const AGAIN = [408, 429, 502, 503, 504]; // of a server that is busy or starts again, and of proxies before it
/** In the session: a reload finds the job again, as does a phone that had closed the page meanwhile. */
const KEPT = `job ${location.pathname}`;
const job = { id: "", kept: sessionStorage.getItem(KEPT) };

export function video(model, paths) {
  $("video").hidden = !("/v1/style/{style}/video" in paths);
  $("film").onsubmit = (event) => {
    event.preventDefault();
    const file = new FormData(event.target).get("file");
    shown($("filmed"), (signal) => run(model(), file, signal), $("filmed-video"), $("film-save"));
  };
  const { kept } = job;
  job.kept = ""; // found once: this opens again where the models are exchanged
  if (kept) shown($("filmed"), (signal) => watch(kept, signal), $("filmed-video"), $("film-save"));
}

/** What is set above for photographs. */
const painting = () => ({ strength: $("strength").value / 100, colours: $("colours").checked ? "original" : "style" });

function line({ state, ahead, frames, frames_total: all, seconds_left: left }) {
  const done = frames ? `, ${frames}${all ? ` of ${all}` : ""} frames` : "";
  return `${state}${ahead ? `, ${ahead} before it` : ""}${done}${left ? `, about ${Math.ceil(left)} s left` : ""}`;
}

const paused = (time) => new Promise((done) => { setTimeout(done, time); });

/** Do it until it succeeds, or is cancelled: an answer that fails loses no video. */
async function patiently(work, signal) {
  for (let pause = PAUSE; ; pause = Math.min(2 * pause, LONGEST)) {
    try {
      return await work();
    } catch (error) {
      if (signal.aborted || (error.status && !AGAIN.includes(error.status))) throw error;
      say($("filmed"), `${error.status ? error.message : "no answer"}; asking again …`);
      await paused(pause);
    }
  }
}

async function run(model, file, signal) {
  $("filmed-video").hidden = $("film-save").hidden = true;
  await cancel(job.id);
  signal.throwIfAborted();
  say($("filmed"), "Sending …");
  const path = `/v1/style/${encodeURIComponent(model.name)}/video?${new URLSearchParams({ model: model.sha256, ...painting() })}`;
  // The signal does not cut this off: the job may be made already, and only the answer names it.
  const { id } = await (await ask(path, { method: "POST", body: file })).json();
  return signal.aborted ? cancel(id) : watch(id, signal);
}

/** Progress and Cancel are those of the one job that is watched; none: "". */
function control(id) {
  job.id = id;
  $("working").hidden = !id;
}

async function watch(id, signal) {
  control(id);
  sessionStorage.setItem(KEPT, id);
  const path = `/v1/jobs/${encodeURIComponent(id)}`;
  try {
    let told = {};
    while (!OVER.includes(told.state)) {
      told = await patiently(async () => (await ask(path, { signal })).json(), signal);
      $("progress").value = told.progress || 0;
      say($("filmed"), line(told));
      await paused(PAUSE);
    }
    if (told.state !== "done") throw new Error(told.detail || `the video is ${told.state}`);
    const blob = await whole(`${path}/file`, signal, (work) => patiently(work, signal));
    $("filmed-video").src = $("film-save").href = URL.createObjectURL(blob);
    $("filmed-video").hidden = $("film-save").hidden = false;
    say($("filmed"), "The video is painted; the server keeps it for a day at most.");
  } catch (error) {
    if (!signal.aborted) sessionStorage.removeItem(KEPT);
    throw error;
  } finally {
    if (!signal.aborted) control("");
  }
}

/** A job that nobody waits for would hold one of the server's few places, for hours. */
async function cancel(id) {
  if (!id) return;
  await ask(`/v1/jobs/${encodeURIComponent(id)}`, { method: "DELETE" }).catch((error) => { if (error.status !== 404) throw error; });
  if (job.id !== id) return;
  sessionStorage.removeItem(KEPT);
  control("");
}

$("cancel").addEventListener("click", () => shown($("filmed"), async () => {
  await cancel(job.id);
  say($("filmed"), "Cancelled.");
}));
