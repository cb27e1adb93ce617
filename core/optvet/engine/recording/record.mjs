// Runs the model of this folder in node:  node record.mjs [PROVIDER] [recording.npz]
//
// Needs onnxruntime-node (npm install onnxruntime-node). PROVIDER is cpu, webgpu, dml, coreml, …

import { readFile, writeFile } from "node:fs/promises";
import os from "node:os";
import { fileURLToPath } from "node:url";
import * as ort from "onnxruntime-node";
import { record } from "./recorder.mjs";

const [provider = "cpu", out = "recording.npz"] = process.argv.slice(2);
const read = async (name) =>
  new Uint8Array(await readFile(fileURLToPath(new URL(name, import.meta.url))));
const runtime = `onnxruntime-node ${ort.env.versions.node ?? ort.env.versions.common}`;
const system = `${os.platform()} ${os.release()} ${os.arch()}`;
const options = { executionProviders: [provider] };
const client = `node ${process.versions.node}`;
const { archive, said } = await record(ort, read, options, client, runtime, system);
await writeFile(out, new Uint8Array(await archive.arrayBuffer()));
console.log(`${out}: ${said}`);
