// The result tables as they were filled: measured beside published, claims, and the model that serves a cell's run.

import { $, ask, label, make, say, shown } from "./common.js";

const TASKS = { weather: "Rain, eight hours ahead", style: "Style transfer", audio: "Text to audio", rl: "Pruning for offline RL" };
const MARKS = { holds: "h", "does not hold": "n", "not separable": "s" };
const MANY = { holds: "hold", "does not hold": "do not hold" };
const PROOF = "Smoke scale: it proves the path, and its numbers say nothing of the paper's.";

export async function tables(models) {
  const found = await (await ask("/v1/tables")).json();
  const largest = [...new Set(found.map(({ name }) => name))].map((name) => {
    const own = found.filter((each) => each.name === name);
    return own.find((each) => each.filled) || own[0];
  });
  const total = {};
  for (const { claims } of largest) for (const [status, count] of Object.entries(claims)) total[status] = (total[status] || 0) + count;
  say($("filled"), `${largest.length} table${largest.length > 1 ? "s and figures" : ""}; claims: ${counted(total) || "none"}.`);
  const groups = Object.groupBy ? Object.groupBy(found, (each) => each.name.split("/")[0]) : grouped(found);
  $("parts").replaceChildren(...Object.entries(groups).flatMap(([task, parts]) =>
    [make("h3", {}, TASKS[task] || task), ...parts.map((part) => folded(part, models))]));
  return found.length > 0;
}

function grouped(found) {
  const groups = {};
  for (const each of found) (groups[each.name.split("/")[0]] ||= []).push(each);
  return groups;
}

const counted = (claims) => Object.entries(claims).map(([status, count]) => `${count} ${(count > 1 && MANY[status]) || status}`).join(", ");

/** A line of the list; what is in it is asked for when it is opened. */
function folded(part, models) {
  const status = make("p", { className: "meta" });
  status.setAttribute("role", "status");
  const inside = make("div", {}, status);
  const details = make("details", { className: "part" },
    make("summary", {}, make("b", {}, part.name.split("/")[1].replace(/(\d)/, " $1")), " ", part.title, " ",
      make("span", { className: "scale" }, part.at), " ", make("small", {}, part.filled ? counted(part.claims) : "not run yet")), inside);
  details.addEventListener("toggle", () => {
    if (!details.open || inside.childElementCount > 1) return;
    shown(status, async (signal) => {
      say(status, "Reading …");
      const path = `/v1/tables/${part.name.split("/").map(encodeURIComponent).join("/")}`, query = new URLSearchParams({ at: part.at });
      const whole = await (await ask(`${path}?${query}`, { signal })).json();
      const picture = whole.picture ? [await drawn(`${path}/picture?${query}`, whole.title, signal)] : [];
      say(status, `${whole.about}.`);
      inside.append(...(whole.scale === "smoke" ? [make("p", { className: "smoke" }, PROOF)] : []), ...picture,
        ...[whole.caution, whole.apart].filter(Boolean).map((text) => make("p", { className: "meta" }, text)),
        ...(whole.columns.length ? [grid(whole, models)] : []),
        ...[whole.note, ...whole.remarks].filter(Boolean).map((text) => make("p", { className: "meta" }, text)), claims(whole.claims));
    });
  });
  return details;
}

async function drawn(path, title, signal) {
  const blob = await (await ask(path, { signal })).blob();
  return make("img", { className: "drawn", alt: title, src: URL.createObjectURL(blob) });
}

function grid(whole, models) {
  const kinds = ["measured", ...(whole.published ? ["published"] : []), ...(whole.differences ? ["difference"] : [])];
  const over = kinds.length;
  const head = [make("tr", {}, make("td", {}), ...whole.columns.map((header) => make("th", { scope: "colgroup", colSpan: over, className: "g" }, header)))];
  if (over > 1) {
    const names = whole.columns.flatMap(() => kinds);
    head.push(make("tr", {}, make("td", {}), ...names.map((name, i) => make("th", { scope: "col", className: i % over ? "" : "g" }, name))));
  }
  const body = whole.rows.map((row) => make("tr", {}, make("th", { scope: "row" }, row.epochs ? `${row.label} (epoch ${row.epochs})` : row.label), ...row.cells.flatMap((cell) => [
    make("td", { className: cell.mean === null ? "g off" : "g", title: row.absent }, value(cell, models)),
    ...kinds.slice(1).map((kind) => make("td", { className: "p" }, cell[kind]))])));
  const wrap = make("div", { className: "wrap results", tabIndex: 0 }, make("table", {}, make("thead", {}, ...head), make("tbody", {}, ...body)));
  wrap.setAttribute("role", "region");
  wrap.setAttribute("aria-label", whole.title);
  return wrap;
}

/** A number; of a run that is served here, a link to its model. */
function value(cell, models) {
  const model = models.find((each) => cell.models.includes(each.sha256));
  if (!model) return cell.measured;
  return make("a", { href: `#model-${model.sha256}`, title: `served here: ${model.task} / ${label(model)}` }, cell.measured);
}

function claims(found) {
  return make("ul", { className: "claims" }, ...found.map((claim) => make("li", {},
    make("span", { className: `v ${MARKS[claim.status] || "t"}` }, claim.status),
    make("div", {}, ...(claim.ours ? [make("b", {}, "Ours: ")] : []), claim.text, make("small", {}, claim.because)))));
}
