// Encode the same random fp64 numbers as test_widgets_codec.py: node codec_random.mjs CODEC.mjs COUNT ROUNDING
// Prints, for each format, the SHA-256 of the codes, one hexadecimal text a line.
import { createHash } from "node:crypto";

const [, , codecPath, count, rounding] = process.argv;
const { FORMATS, decode, encode, hexOf } = await import(codecPath);
const MASK = (1n << 64n) - 1n;

function* splitMix64(state) {
  for (;;) {
    state = (state + 0x9e3779b97f4a7c15n) & MASK;
    let z = state;
    z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
    z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & MASK;
    yield z ^ (z >> 31n);
  }
}

const random = splitMix64(2024n);
const hashes = Object.fromEntries(Object.keys(FORMATS).map((name) => [name, createHash("sha256")]));
for (let index = 0; index < Number(count); index += 1) {
  let bits = random.next().value;
  // Every second number has an exponent near the small formats; the others are any fp64 pattern.
  if (index % 2) bits = (bits & ~(0x7ffn << 52n)) | ((990n + (random.next().value % 66n)) << 52n);
  const value = decode(FORMATS.fp64, bits);
  for (const [name, format] of Object.entries(FORMATS)) {
    const missing = value.kind === "nan" && format.specials === "finite";
    hashes[name].update((missing ? "refused" : hexOf(format, encode(value, format, { rounding }))) + "\n");
  }
}
console.log(JSON.stringify(Object.fromEntries(Object.entries(hashes).map(([name, hash]) => [name, hash.digest("hex")]))));
