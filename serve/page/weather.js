// An hour of images in, eight hours of rain out: the forecast beside what the radar saw, where that is known.

import { $, ask, choices, player, say, seconds, shown, still } from "./common.js";
import { npz } from "./npz.js";

const STEPS = 200, MASKED = 2;
const RAMP = [[242, 245, 250], [156, 196, 255], [47, 111, 224], [42, 29, 122]];
const GREY = [150, 156, 168];
const known = { steps: null, truth: null, minutes: [], size: 0 };
const film = player($("play"), $("time"), () => 250, frame);

export function weather(models) {
  choices($("forecast").querySelector("select"), models[0].about.regions || [""]);
  $("take").onclick = () => shown($("foretold"), async (signal) => {
    const file = await (await ask("/v1/weather/example", { signal })).blob();
    const { truth, region, about } = await npz(await file.arrayBuffer());
    await forecast(file, region.data, truth, about.data, signal);
  }, $("scrub"));
  $("forecast").onsubmit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target), file = form.get("file");
    shown($("foretold"), async (signal) => {
      const { truth } = await npz(await file.arrayBuffer()).catch(() => ({}));
      await forecast(file, form.get("region"), truth, file.name, signal);
    }, $("scrub"));
  };
}

async function forecast(file, region, truth, about, signal) {
  const since = performance.now();
  film.pause();
  say($("foretold"), "Forecasting …");
  const answer = await ask(`/v1/weather?${new URLSearchParams({ region })}`, { method: "POST", body: file, signal });
  const { probability, minutes } = await npz(await answer.arrayBuffer());
  const fits = truth?.data instanceof Uint8Array && truth.data.length === probability.data.length;
  Object.assign(known, { steps: probability.data, minutes: minutes.data, size: probability.shape[1], truth: fits ? truth.data : null });
  Object.assign($("time"), { max: probability.shape[0] - 1, value: 0 });
  for (const map of [$("map"), $("seen")]) Object.assign(map, { width: known.size, height: known.size });
  $("seen").parentElement.hidden = $("scored").hidden = !fits;
  $("scrub").hidden = false;
  say($("foretold"), `${about}; ${probability.shape[0]} lead times of ${minutes.data[0]} minutes, in ${seconds(since)}`);
  frame();
  if (!still.matches) film.play();
}

function tint(share) {
  const place = Math.min(RAMP.length - 1.001, share * (RAMP.length - 1)), low = Math.floor(place);
  return RAMP[low].map((value, i) => value + (place - low) * (RAMP[low + 1][i] - value));
}

function fill(canvas, values, pixel) {
  const context = canvas.getContext("2d"), image = context.createImageData(known.size, known.size);
  values.forEach((value, at) => image.data.set([...pixel(value), 255], 4 * at));
  context.putImageData(image, 0, 0);
}

/** Intersection over union of rain from a step on with the radar's, where that measured; of pixels [from, to). */
function iou(from, to) {
  const least = Number($("threshold").value);
  let both = 0, either = 0;
  for (let at = from; at < to; at += 1) {
    const wet = known.steps[at] >= least, rain = known.truth[at] === 1;
    if (known.truth[at] === MASKED) continue;
    both += wet && rain;
    either += wet || rain;
  }
  return either ? (both / either).toFixed(3) : "0.000";
}

const share = (values, test) => `${((100 * values.filter(test).length) / values.length).toFixed(0)} %`;

function frame() {
  if (!known.steps) return;
  const lead = Number($("time").value), area = known.size ** 2, from = lead * area, least = Number($("threshold").value);
  const steps = known.steps.subarray(from, from + area), minutes = known.minutes[lead];
  const time = `+${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")}`;
  fill($("map"), steps, (step) => tint(step / STEPS));
  $("map").setAttribute("aria-label", `Forecast at ${time}: rain on ${share(steps, (step) => step >= least)} of the pixels`);
  $("lead").textContent = time;
  $("time").setAttribute("aria-valuetext", time);
  $("least").textContent = (least / STEPS).toFixed(2);
  if (!known.truth) return;
  const truth = known.truth.subarray(from, from + area);
  fill($("seen"), truth, (event) => (event === MASKED ? GREY : tint(event)));
  $("seen").setAttribute("aria-label", `Radar at ${time}: rain on ${share(truth, (event) => event === 1)} of the pixels`);
  $("iou").textContent = `IoU ${iou(from, from + area)} at ${time}, ${iou(0, known.steps.length)} over all lead times`;
}

$("threshold").addEventListener("input", frame);
