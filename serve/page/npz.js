// Reads an npz file: arrays of bytes, of 32-bit integers and floats, and texts.

const KINDS = { "|u1": Uint8Array, "<i4": Int32Array, "<f4": Float32Array };

export async function npz(buffer) {
  const view = new DataView(buffer), found = {};
  let end = buffer.byteLength - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end -= 1;
  if (end < 0) return found;
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left -= 1) {
    const method = view.getUint16(at + 10, true), packed = view.getUint32(at + 20, true);
    const [name, extra, remark] = [28, 30, 32].map((place) => view.getUint16(at + place, true));
    const local = view.getUint32(at + 42, true);
    const data = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const title = new TextDecoder().decode(new Uint8Array(buffer, at + 46, name)).replace(".npy", "");
    const bytes = buffer.slice(data, data + packed);
    const stream = () => new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    found[title] = npy(method ? await new Response(stream()).arrayBuffer() : bytes);
    at += 46 + name + extra + remark;
  }
  return found;
}

function npy(buffer) {
  const length = new DataView(buffer).getUint16(8, true);
  const header = new TextDecoder().decode(new Uint8Array(buffer, 10, length));
  const shape = header.match(/'shape': \(([^)]*)\)/)[1].split(",").filter((word) => word.trim()).map(Number);
  const kind = header.match(/'descr': '([^']*)'/)[1], data = buffer.slice(10 + length);
  if (kind.startsWith("<U")) return { shape, data: [...new Uint32Array(data)].filter(Boolean).map((code) => String.fromCodePoint(code)).join("") };
  return { shape, data: kind in KINDS ? new KINDS[kind](data) : null };
}
