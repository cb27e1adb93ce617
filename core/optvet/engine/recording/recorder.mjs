// Runs the model of a kit, and packs what it gives as recording.npz; for node and browsers.
//
// npz is a zip archive of npy files: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

const NUMPY = {
  float32: "<f4", float64: "<f8", float16: "<f2", int8: "|i1", uint8: "|u1", int16: "<i2",
  uint16: "<u2", int32: "<i4", uint32: "<u4", int64: "<i8", uint64: "<u8", bool: "|b1",
};
const ARRAYS = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, int8: Int8Array,
  uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array,
  uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array, bool: Uint8Array,
};

/** Run every sample of the kit; `read(name)` gives the bytes of a file of it. */
export async function record(ort, read, options, client, runtime, system) {
  const kit = JSON.parse(new TextDecoder().decode(await read("kit.json")));
  const bytes = await read("inputs.bin");
  const samples = Array.from({ length: kit.samples }, () => ({}));
  const files = [], inputs = [], values = [], seconds = [];
  for (const each of kit.inputs) {
    // A copy, since an array of larger elements must begin at a multiple of their size.
    const data = bytes.slice(each.start, each.start + each.bytes);
    files.push([`i${inputs.length}.npy`, npy(each.dtype, each.shape, data)]);
    inputs.push([each.sample, each.name]);
    const array = typed(each.dtype, data);
    samples[each.sample][each.name] = new ort.Tensor(each.dtype, array, each.shape);
  }
  let failure = "";
  try {
    const session = await ort.InferenceSession.create(await read("model.onnx"), options);
    for (const [number, feeds] of samples.entries()) {
      const started = performance.now();
      const results = await session.run(feeds);
      seconds.push((performance.now() - started) / 1000);
      for (const name of session.outputNames) {
        const value = results[name];
        const data = value && NUMPY[value.type] ? await value.getData() : null;
        if (!data) continue;
        const raw = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
        files.push([`v${values.length}.npy`, npy(value.type, value.dims, raw)]);
        values.push([number, name]);
      }
    }
  } catch (error) {
    failure = String(error).slice(0, 4000);  // whatever a provider raises is there to be recorded
  }
  const about = {
    schema: "optvet.recording/1", model: kit.model, client, runtime, system, seconds, inputs,
    values, failure,
    providers: (options.executionProviders ?? ["default"]).map((p) => p.name ?? p),
    options: Object.entries(options)
      .filter(([key]) => key !== "executionProviders")
      .map(([key, value]) => `${key}=${JSON.stringify(value)}`),
  };
  const told = new TextEncoder().encode(JSON.stringify(about));
  files.unshift(["about.npy", npy("uint8", [told.length], told)]);
  const said = failure || `${values.length} values of ${kit.samples} samples`;
  return { archive: zip(files), said };
}

function typed(dtype, data) {
  // Where an engine has them, tensors of float16 take no other array.
  const Kind = dtype === "float16" && globalThis.Float16Array ? globalThis.Float16Array : ARRAYS[dtype];
  return new Kind(data.buffer, 0, data.byteLength / Kind.BYTES_PER_ELEMENT);
}

function npy(dtype, shape, data) {
  const sizes = shape.length === 1 ? `${shape[0]},` : shape.join(", ");
  let header = `{'descr': '${NUMPY[dtype]}', 'fortran_order': False, 'shape': (${sizes}), }`;
  header += " ".repeat(63 - ((10 + header.length) % 64)) + "\n";
  const file = new Uint8Array(10 + header.length + data.length);
  file.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
  file.set(new TextEncoder().encode(header), 10);
  file.set(data, 10 + header.length);
  return file;
}

const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n >>> 0;
});

function zip(files) {
  const parts = [], directory = [];
  let offset = 0;
  for (const [name, data] of files) {
    const title = new TextEncoder().encode(name);
    let crc = 0xffffffff;
    for (const byte of data) crc = CRC[(crc ^ byte) & 255] ^ (crc >>> 8);
    crc = (crc ^ 0xffffffff) >>> 0;
    const about = [20, 0, 0, 0, 0x21, crc, data.length, data.length, title.length, 0];
    parts.push(fields(0x04034b50, about, "2222244422"), title, data);
    directory.push(fields(0x02014b50, [20, ...about, 0, 0, 0, 0, offset], "2222224442222244"), title);
    offset += 30 + title.length + data.length;
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0);
  const end = fields(0x06054b50, [0, 0, files.length, files.length, size, offset, 0], "2222442");
  return new Blob([...parts, ...directory, end]);
}

function fields(signature, numbers, widths) {
  const all = [signature, ...numbers], sizes = [4, ...[...widths].map(Number)];
  const view = new DataView(new ArrayBuffer(sizes.reduce((a, b) => a + b)));
  let at = 0;
  all.forEach((number, i) => {
    sizes[i] === 4 ? view.setUint32(at, number, true) : view.setUint16(at, number, true);
    at += sizes[i];
  });
  return new Uint8Array(view.buffer);
}
