// A photograph in each style, before and after; a video as a job, where the server takes any.

import { $, ask, label, make, say, seconds, show, shown } from "./common.js";
import { video } from "./video.js";

const LONGER = 1024, SMALL = 320, TILE = 200;
const picture = { blob: null, model: null, models: [] };

export function styles(models, paths) {
  $("styles").replaceChildren(...models.map((model) => {
    const button = make("button", { type: "button" }, ...(models.length > 1 ? [make("i")] : []), label(model));
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => choose(model, button));
    return button;
  }));
  const chosen = Math.max(0, models.findIndex((model) => picture.model && label(model) === label(picture.model)));
  Object.assign(picture, { models, model: models[chosen] });
  $("styles").children[chosen].setAttribute("aria-pressed", "true");
  video(() => picture.model, paths);
  if (picture.blob) thumbnails(picture.blob, SMALL);
  else example().then((file) => reduced(file, TILE)).then((blob) => thumbnails(blob, TILE));
}

const example = async () => (await ask("/page/example.jpg")).blob();

function choose(model, button) {
  for (const other of $("styles").children) other.setAttribute("aria-pressed", String(other === button));
  picture.model = model;
  paint();
}

async function reduced(file, longer = LONGER) {
  const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
  const scale = Math.min(1, longer / Math.max(bitmap.width, bitmap.height));
  const canvas = make("canvas", { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.93));
}

/** Show and paint a photograph, a file or the promise of one. */
function take(file) {
  return shown($("painted"), async (signal) => {
    picture.blob = null;
    const given = await file;
    const blob = await reduced(given).catch(() => { throw new Error("the browser cannot read this file as a picture"); });
    if (signal.aborted) return; // another one was chosen while this was read
    picture.blob = blob;
    $("after").removeAttribute("src");
    await show($("before"), blob);
    if (signal.aborted) return;
    await paint();
    if (picture.blob === blob && !$("compare").hidden) thumbnails(blob, SMALL);
  }, $("compare"));
}

function stylised(model, blob, size, signal) {
  const query = new URLSearchParams({ size, model: model.sha256, strength: $("strength").value / 100,
    colours: $("colours").checked ? "original" : "style", format: size ? "jpeg" : "png" });
  return ask(`/v1/style/${encodeURIComponent(model.name)}?${query}`, { method: "POST", body: blob, signal });
}

function paint() {
  if (!picture.blob) return undefined;
  return shown($("painted"), async (signal) => {
    const since = performance.now();
    say($("painted"), `Painting in the style of ${label(picture.model)} …`);
    $("compare").hidden = false;
    const blob = await (await stylised(picture.model, picture.blob, 0, signal)).blob();
    await show($("after"), blob);
    $("after").alt = `The photograph in the style of ${label(picture.model)}`;
    $("save").href = $("after").src;
    say($("painted"), `${label(picture.model)}, in ${seconds(since)}`);
  }, $("compare"));
}

/** Paint a small picture for each style: the example's at first, then the person's own; one that fails stays plain. */
async function thumbnails(blob, size) {
  picture.tiling?.abort();
  const { signal } = picture.tiling = new AbortController();
  for (const [place, model] of picture.models.length > 1 ? picture.models.entries() : []) {
    const image = make("img", { alt: "" });
    try {
      await show(image, await (await stylised(model, blob, size, signal)).blob());
    } catch {
      if (signal.aborted) return;
      continue;
    }
    $("styles").children[place].firstChild.replaceWith(image);
  }
}

function slide() {
  $("after").style.clipPath = `inset(0 0 0 ${$("slide").value}%)`;
  $("edge").style.left = `${$("slide").value}%`;
  $("slide").setAttribute("aria-valuetext", `${$("slide").value} % photograph`);
}

/** Drag on the picture itself. */
function drag(event) {
  if (!(event.buttons & 1)) return;
  if (event.type === "pointerdown") event.currentTarget.setPointerCapture(event.pointerId); // also beyond the picture
  const box = $("after").getBoundingClientRect();
  $("slide").value = Math.round(100 * (event.clientX - box.left) / box.width);
  slide();
}

for (const kind of ["pointerdown", "pointermove"]) $("after").parentElement.addEventListener(kind, drag);
$("photograph").addEventListener("change", (event) => event.target.files[0] && take(event.target.files[0]));
$("example").addEventListener("click", () => take(example()));
for (const kind of ["dragover", "dragleave", "drop"]) {
  $("drop").addEventListener(kind, (event) => { event.preventDefault(); $("drop").classList.toggle("over", kind === "dragover"); });
}
$("drop").addEventListener("drop", (event) => event.dataTransfer.files[0] && take(event.dataTransfer.files[0]));
$("slide").addEventListener("input", slide);
for (const id of ["colours", "strength"]) $(id).addEventListener("change", paint);
slide();
