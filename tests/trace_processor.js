// SPDX-License-Identifier: GPL-2.0-or-later
// Perfetto's trace processor as its page runs it, in a worker, but by node:
//   node trace_processor.js DIR REQUESTS ANSWERS
// DIR has engine_bundle.js and trace_processor.wasm; REQUESTS and ANSWERS are streams of
// TraceProcessorRpc.

"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [dir, requests, answers] = process.argv.slice(2);
// Of a file that is one line node would print all.
process.on("uncaughtException", (error) => {
  process.exitCode = 1;
  console.error(String((error && error.message) || error).slice(0, 1000));
  process.exit();
});
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = function () {};
globalThis.importScripts = function () {};
globalThis.location = { href: "http://localhost/engine_bundle.js" };
const read = (name) => fs.readFileSync(path.join(dir, path.basename(String(name))));
globalThis.fetch = async (name) =>
  new Response(read(name), { headers: { "content-type": "application/wasm" } });
globalThis.XMLHttpRequest = class {
  open(method, name) {
    this.name = name;
  }
  send() {
    const data = read(this.name);
    this.response = data.buffer.slice(
      data.byteOffset,
      data.byteOffset + data.byteLength,
    );
  }
};
// It takes node for what it is, and then wants modules that a script does not have.
const versions = process.versions;
Object.defineProperty(process, "versions", { value: { ...versions, node: undefined } });

const port = {
  postMessage: (data) => fs.appendFileSync(answers, Buffer.from(data)),
};
fs.writeFileSync(answers, "");
vm.runInThisContext(fs.readFileSync(path.join(dir, "engine_bundle.js"), "utf8"));
globalThis.self.onmessage({ data: port });
const started = Date.now();
const timer = setInterval(() => {
  try {
    port.onmessage({ data: new Uint8Array(0) });
    // What compiles is not ready before its memory is there.
    port.onmessage({ data: new Uint8Array(fs.readFileSync(requests)) });
    clearInterval(timer);
    process.exit(0);
  } catch (error) {
    if (Date.now() - started > 60000) {
      console.error(error);
      process.exit(1);
    }
  }
}, 100);
