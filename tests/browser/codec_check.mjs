// Hold the JavaScript codec to the shared vectors: node codec_check.mjs CODEC.mjs VECTORS.json
// Prints one JSON object: {checked, failures: [first few]}.
import { readFileSync } from "node:fs";

const [, , codecPath, vectorsPath] = process.argv;
const codec = await import(codecPath);
const { formats, vectors } = JSON.parse(readFileSync(vectorsPath, "utf8"));
for (const [name, format] of Object.entries(formats)) format.name = name;

const hex = (n) => (n === null ? null : "0x" + n.toString(16));

function decimalOf(value) {
  if (value.kind === "nan") return value.negative ? "-nan" : "nan";
  if (value.kind === "infinity") return value.negative ? "-inf" : "inf";
  return codec.plainDecimal(value);
}

const operations = {
  encode(format, { input, rounding, overflow, draw }) {
    return { code: hex(codec.encode(codec.parseNumber(input), format, { rounding, overflow, draw: codec.fromDraw(Number(draw ?? 0)) })) };
  },
  decode(format, { code }) {
    return { value: decimalOf(codec.decode(format, codec.checkCode(format, BigInt(code)))) };
  },
  fields(format, { code }) {
    const part = codec.fields(format, BigInt(code));
    return { sign: part.sign, exponent: hex(BigInt(part.biased_exponent)), fraction: hex(part.fraction), kind: part.kind, payload: hex(part.payload), true_exponent: part.exponent };
  },
  next_up: (format, { code }) => ({ result: hex(codec.nextUp(format, BigInt(code))) }),
  next_down: (format, { code }) => ({ result: hex(codec.nextDown(format, BigInt(code))) }),
  order_key: (format, { code }) => ({ result: hex(codec.orderKey(format, BigInt(code))) }),
  ulp(format, { code }) {
    const gap = codec.ulp(format, BigInt(code));
    if (gap === null) throw new Error("no ulp");
    return { value: codec.plainDecimal(gap) };
  },
};

function fault(vector) {
  let got;
  try {
    got = operations[vector.op](formats[vector.format], vector);
  } catch (error) {
    return vector.error ? null : `threw ${error.message}`;
  }
  if (vector.error) return `accepted: ${JSON.stringify(got)}`;
  const wrong = Object.entries(got).filter(([key, value]) => vector[key] !== value);
  return wrong.length ? JSON.stringify(Object.fromEntries(wrong)) : null;
}

const failures = vectors.map((vector) => ({ vector, fault: fault(vector) })).filter((one) => one.fault);
console.log(JSON.stringify({ checked: vectors.length, failed: failures.length, failures: failures.slice(0, 5) }));
