// Exact float formats: the JavaScript twin of labkit.numbers, held to the same vectors.
//
// A number is {kind: "finite", negative, num, den} with BigInt magnitude num/den, {kind: "infinity", negative}
// or {kind: "nan", negative, signalling, payload}. A code is a BigInt: the bits as an unsigned integer.
// A format is the plain object {name, exponent_bits, fraction_bits, bias, specials, signed}.
// Nothing here goes through a JavaScript number: a double would round what this file is there to show.

export const ROUNDINGS = ["nearest_even", "nearest_away", "toward_zero", "up", "down", "stochastic"];
export const OVERFLOWS = ["ieee", "saturate"];
export const SPECIALS = ["ieee", "fn", "fnuz", "finite"];
const MAX_TEXT = 100000; // the longest exact decimal of a 128-bit format has about 16,500 characters
// Exponents of the leading digit are cut here: beyond, a number overflows or vanishes in every format alike,
// and no power of a hostile size is ever built.
const MAX_DECIMAL_EXPONENT = 60000n;
const MAX_BINARY_EXPONENT = 200000n;

const FORMAT_ROWS = [
  ["fp64", 11, 52, "ieee"],
  ["fp32", 8, 23, "ieee"],
  ["tf32", 8, 10, "ieee"],
  ["fp16", 5, 10, "ieee"],
  ["bf16", 8, 7, "ieee"],
  ["fp8_e4m3fn", 4, 3, "fn"],
  ["fp8_e5m2", 5, 2, "ieee"],
  ["fp8_e4m3fnuz", 4, 3, "fnuz"],
  ["fp8_e5m2fnuz", 5, 2, "fnuz"],
  ["fp6_e3m2", 3, 2, "finite"],
  ["fp6_e2m3", 2, 3, "finite"],
  ["fp4_e2m1", 2, 1, "finite"],
  ["e8m0", 8, 0, "fn", false],
];

export function makeFormat(name, exponentBits, fractionBits, specials = "ieee", signed = true, bias = null) {
  const standard = exponentBits === 0 ? 1 : 2 ** (exponentBits - 1) - (specials === "fnuz" ? 0 : 1);
  return { name, exponent_bits: exponentBits, fraction_bits: fractionBits, bias: bias ?? standard, specials, signed };
}

export const FORMATS = Object.fromEntries(FORMAT_ROWS.map((row) => [row[0], makeFormat(...row)]));

// The format itself; an Error with one sentence where no such format can exist (the rules of labkit.numbers.FloatFormat).
export function checkFormat(format) {
  const limits = { exponent_bits: [0, 15], fraction_bits: [0, 112], bias: [-32768, 32768] };
  for (const [field, [low, high]] of Object.entries(limits)) {
    const number = format[field];
    if (!Number.isInteger(number) || number < low || number > high) throw new Error(`${field} is a whole number from ${low} to ${high}, not ${number}.`);
  }
  if (!SPECIALS.includes(format.specials)) throw new Error(`Special values are ${SPECIALS.join(", ")}, not ${format.specials}.`);
  if (format.specials === "ieee" && !(format.exponent_bits && format.fraction_bits)) throw new Error("Infinities and NaNs need an exponent bit and a fraction bit.");
  if (format.specials === "fnuz" && !format.signed) throw new Error("fnuz needs a sign bit: its NaN is the code of negative zero.");
  const { maxCode, scaleOnly } = shapeOf(format);
  if (maxCode < (scaleOnly ? 0n : 1n)) throw new Error("Such a format would hold no number but zero.");
  return format;
}

// ---- integers and rationals -------------------------------------------------------------------------------------

export function bitLength(n) {
  if (n === 0n) return 0;
  const hex = n.toString(16);
  return hex.length * 4 - Math.clz32(parseInt(hex[0], 16)) + 28;
}

const shift = (n, by) => (by >= 0 ? n << BigInt(by) : n >> BigInt(-by));
const power2 = (k) => (k >= 0 ? [1n << BigInt(k), 1n] : [1n, 1n << BigInt(-k)]);
const isPower2 = (n) => n > 0n && (n & (n - 1n)) === 0n;

export function finite(num, den = 1n, negative = false) {
  if (num < 0n) return finite(-num, den, !negative);
  if (isPower2(den)) {
    // Powers of two cancel by a shift, far cheaper than a gcd.
    const common = num === 0n ? bitLength(den) - 1 : Math.min(bitLength(num & -num) - 1, bitLength(den) - 1);
    return { kind: "finite", negative, num: num >> BigInt(common), den: den >> BigInt(common) };
  }
  return { kind: "finite", negative, num, den };
}

// The exact value of a JavaScript number from 0 up to below 1 (a random draw).
export function fromDraw(draw) {
  if (!(draw >= 0 && draw < 1)) throw new Error(`${draw} is not a number from 0 up to but not including 1.`);
  let den = 1n;
  for (; !Number.isInteger(draw); draw *= 2) den *= 2n; // doubling a double is exact
  return finite(BigInt(draw), den);
}

export const infinity = (negative = false) => ({ kind: "infinity", negative });
export const nan = (negative = false, signalling = false, payload = 0n) => ({ kind: "nan", negative, signalling, payload });
export const isZero = (value) => value.kind === "finite" && value.num === 0n;
const signed = (value) => (value.negative ? -value.num : value.num);

export function add(a, b) {
  if (a.kind === "nan") return a;
  if (b.kind === "nan") return b;
  if (a.kind === "infinity" && b.kind === "infinity") return a.negative === b.negative ? a : nan();
  if (a.kind === "infinity") return a;
  if (b.kind === "infinity") return b;
  const total = signed(a) * b.den + signed(b) * a.den;
  return finite(total, a.den * b.den, total === 0n && a.negative && b.negative);
}

export const negate = (value) => ({ ...value, negative: !value.negative });
export const subtract = (a, b) => add(a, negate(b));

export function compare(a, b) {
  const rank = (v) => (v.kind === "infinity" ? (v.negative ? -1 : 1) : 0);
  if (rank(a) !== rank(b) || rank(a) !== 0) return Math.sign(rank(a) - rank(b));
  const difference = signed(a) * b.den - signed(b) * a.den;
  return difference > 0n ? 1 : difference < 0n ? -1 : 0;
}

// floor(log2(num/den)) of a positive rational, from bit lengths alone.
export function floorLog2(num, den) {
  const guess = bitLength(num) - bitLength(den);
  const below = guess >= 0 ? num < den << BigInt(guess) : num << BigInt(-guess) < den;
  return below ? guess - 1 : guess;
}

// A JavaScript number near a rational, for drawing only (pixel positions), never for a result.
export function toNumber(value) {
  if (value.kind === "nan") return NaN;
  if (value.kind === "infinity") return value.negative ? -Infinity : Infinity;
  if (value.num === 0n) return 0;
  const exponent = floorLog2(value.num, value.den);
  const scaled = exponent < 60 ? (value.num << BigInt(60 - exponent)) / value.den : value.num / (value.den << BigInt(exponent - 60));
  const magnitude = exponent > 1000 ? Infinity : Number(scaled) * 2 ** (exponent - 60);
  return value.negative ? -magnitude : magnitude;
}

// ---- reading text -----------------------------------------------------------------------------------------------

const NUMBER_HELP = "type a decimal (0.1, -3e-5), a hex float (0x1.8p-3), a power (2^-24), a ratio (1/3), inf or nan";

// digits (in base 10 or 16) × base^exponent, with the exponent of the leading digit cut to what any format can tell apart.
function scaled(digits, base, perDigit, places, written, limit) {
  const kept = digits.replace(/^0+/, "");
  if (!kept) return finite(0n);
  const exponent = BigInt(written ?? 0) - perDigit * BigInt(places);
  const leading = exponent + perDigit * BigInt(kept.length);
  const cut = leading > limit ? limit : leading < -limit ? -limit : leading;
  const power = exponent + cut - leading;
  const whole = BigInt((perDigit === 4n ? "0x" : "") + kept);
  const value = power >= 0n ? finite(whole * base ** power) : finite(whole, base ** -power);
  return cut === leading ? value : { ...value, beyond: true };
}

function parseUnsigned(text) {
  let match = /^(\d*)\.?(\d*)(?:e([+-]?\d+))?$/i.exec(text);
  if (match && (match[1] || match[2])) return scaled(match[1] + match[2], 10n, 1n, match[2].length, match[3], MAX_DECIMAL_EXPONENT);
  match = /^0x([0-9a-f]*)\.?([0-9a-f]*)(?:p([+-]?\d+))?$/i.exec(text);
  if (match && (match[1] || match[2])) return scaled(match[1] + match[2], 2n, 4n, match[2].length, match[3], MAX_BINARY_EXPONENT);
  match = /^2(?:\^|\*\*)([+-]?\d+)$/.exec(text);
  if (match) return scaled("1", 2n, 4n, 0, match[1], MAX_BINARY_EXPONENT);
  match = /^(\d+)\/(\d+)$/.exec(text);
  if (match && BigInt(match[2]) !== 0n) return finite(BigInt(match[1]), BigInt(match[2]));
  if (/^(inf|infinity|∞)$/i.test(text)) return infinity();
  return /^nan$/i.test(text) ? nan() : null;
}

// Raises an Error with one sentence where the text is no number.
export function parseNumber(raw) {
  if (raw.length > MAX_TEXT) throw new Error(`The text has ${raw.length} characters; at most ${MAX_TEXT} are read.`);
  const text = raw.trim().replace(/\u2212/g, "-").replace(/(?<=[0-9a-f])_(?=[0-9a-f])/gi, "");
  const value = parseUnsigned(text.replace(/^[+-]/, ""));
  if (!value) throw new Error(`${JSON.stringify(raw.slice(0, 40))} is not a number: ${NUMBER_HELP}.`);
  return text.startsWith("-") ? negate(value) : value;
}

// ---- formats ----------------------------------------------------------------------------------------------------

// The derived constants of a format, kept per object so that a drag over 64 bits does not rebuild them.
const SHAPES = new WeakMap();
export function shapeOf(format) {
  let shape = SHAPES.get(format);
  if (!shape) SHAPES.set(format, (shape = makeShape(format)));
  return shape;
}

function makeShape(format) {
  const { exponent_bits: e, fraction_bits: m, bias, specials } = format;
  const magnitudeBits = e + m;
  const allOnes = (1n << BigInt(magnitudeBits)) - 1n;
  const top = ((1n << BigInt(e)) - 1n) << BigInt(m);
  // An unsigned format without a fraction (E8M0) is a pure power of two: it has no zero and no subnormal.
  const scaleOnly = !format.signed && m === 0;
  const maxCode = specials === "ieee" ? top - 1n : specials === "fn" ? allOnes - 1n : allOnes;
  const signBit = format.signed ? 1n << BigInt(magnitudeBits) : 0n;
  const quietBit = m > 0 ? 1n << BigInt(m - 1) : 0n;
  const nanCode = { ieee: top | quietBit, fn: allOnes, fnuz: signBit }[specials] ?? null;
  return {
    bits: magnitudeBits + (format.signed ? 1 : 0),
    allOnes, top, scaleOnly, maxCode, signBit, nanCode,
    quietBit,
    minExponent: scaleOnly ? -bias : 1 - bias, // of the smallest normal
    hasInfinity: specials === "ieee",
    hasNaN: specials !== "finite",
    hasNegativeZero: format.signed && specials !== "fnuz",
  };
}

export const hexOf = (format, code) => "0x" + code.toString(16).toUpperCase().padStart(Math.ceil(shapeOf(format).bits / 4), "0");
export const binaryOf = (format, code) => code.toString(2).padStart(shapeOf(format).bits, "0");

export function checkCode(format, code) {
  const { bits } = shapeOf(format);
  if (code < 0n || code >> BigInt(bits)) throw new Error(`${hexOf(format, code)} does not fit into the ${bits} bits of ${format.name}.`);
  return code;
}

function split(format, code) {
  const shape = shapeOf(format);
  return { shape, negative: shape.signBit !== 0n && (code & shape.signBit) !== 0n, magnitude: code & shape.allOnes };
}

function isNaNCode(format, shape, negative, magnitude) {
  if (format.specials === "ieee") return magnitude > shape.top;
  if (format.specials === "fn") return magnitude === shape.allOnes;
  return format.specials === "fnuz" && negative && magnitude === 0n;
}

function magnitudeValue(format, shape, magnitude, negative) {
  const m = format.fraction_bits;
  const fraction = magnitude & ((1n << BigInt(m)) - 1n);
  const biased = Number(magnitude >> BigInt(m));
  const normal = biased > 0 || shape.scaleOnly;
  const significand = normal ? fraction | (1n << BigInt(m)) : fraction;
  const [num, den] = power2((normal ? biased : 1) - format.bias - m);
  return finite(significand * num, den, negative);
}

export function decode(format, code) {
  const { shape, negative, magnitude } = split(format, code);
  if (isNaNCode(format, shape, negative, magnitude)) {
    const { signalling, payload } = nanParts(format, shape, magnitude);
    return nan(negative && format.specials !== "fnuz", signalling, payload);
  }
  if (shape.hasInfinity && magnitude === shape.top) return infinity(negative);
  return magnitudeValue(format, shape, magnitude, negative);
}

function nanParts(format, shape, magnitude) {
  if (format.specials !== "ieee") return { signalling: false, payload: 0n };
  const fraction = magnitude - shape.top;
  return { signalling: (fraction & shape.quietBit) === 0n, payload: fraction & (shape.quietBit - 1n) };
}

// Every part of a code that the viewer shows.
export function fields(format, code) {
  const { shape, negative, magnitude } = split(format, code);
  const m = BigInt(format.fraction_bits);
  const fraction = magnitude & ((1n << m) - 1n);
  const biased = Number(magnitude >> m);
  const parts = { sign: negative ? 1 : 0, biased_exponent: biased, fraction, exponent: null, hidden: null, payload: null };
  if (isNaNCode(format, shape, negative, magnitude)) {
    const { signalling, payload } = nanParts(format, shape, magnitude);
    return { ...parts, kind: signalling ? "signalling NaN" : "quiet NaN", payload };
  }
  if (shape.hasInfinity && magnitude === shape.top) return { ...parts, kind: "infinity" };
  const normal = biased > 0 || shape.scaleOnly;
  const kind = normal ? "normal" : fraction === 0n ? "zero" : "subnormal";
  return { ...parts, kind, exponent: (normal ? biased : 1) - format.bias, hidden: normal ? 1 : 0 };
}

// ---- rounding ---------------------------------------------------------------------------------------------------

// Whether to step away from zero, given remainder/divisor of what was cut off.
function roundsAway({ odd, remainder, divisor, negative, rounding, draw }) {
  if (remainder === 0n) return false;
  if (rounding === "toward_zero") return false;
  if (rounding === "up") return !negative;
  if (rounding === "down") return negative;
  if (rounding === "stochastic") return draw.num * divisor < remainder * draw.den;
  const twice = 2n * remainder;
  if (twice !== divisor) return twice > divisor;
  // Without fraction bits both neighbours of a tie are odd; the larger one wins (IEEE 754-2019, 4.3.1).
  return rounding === "nearest_away" || odd;
}

function roundMagnitude(format, shape, value, options) {
  const { num, den } = value;
  const natural = floorLog2(num, den);
  if (shape.scaleOnly && natural < shape.minExponent) return 0n;
  if (natural > shape.minExponent + 2 ** format.exponent_bits) return shape.allOnes + 1n; // out of sight: do not build it
  const exponent = Math.max(natural, shape.minExponent);
  const ulpExponent = exponent - format.fraction_bits;
  const scaledNum = ulpExponent < 0 ? num << BigInt(-ulpExponent) : num;
  const divisor = ulpExponent > 0 ? den << BigInt(ulpExponent) : den;
  const quotient = scaledNum / divisor;
  const remainder = scaledNum - quotient * divisor;
  // One binade up is 2^fraction_bits codes up, and the hidden bit of the quotient is itself worth one such step.
  const code = (BigInt(exponent - shape.minExponent) << BigInt(format.fraction_bits)) + quotient - (shape.scaleOnly ? 1n : 0n);
  return code + (roundsAway({ odd: (quotient & 1n) === 1n, remainder, divisor, negative: value.negative, ...options }) ? 1n : 0n);
}

// Above the largest number stands infinity, else NaN, else nothing.
function beyondMax(shape) {
  return shape.hasInfinity ? shape.top : shape.hasNaN ? shape.nanCode : shape.maxCode;
}

function staysFinite(value, { rounding, overflow }) {
  if (overflow === "saturate") return true;
  if (value.kind === "infinity") return false;
  return rounding === "toward_zero" || rounding === (value.negative ? "up" : "down");
}

function withSign(shape, magnitude, negative) {
  return !negative || (magnitude === 0n && !shape.hasNegativeZero) ? magnitude : magnitude | shape.signBit;
}

function negativeInUnsigned(format, shape, value, options) {
  if (isZero(value)) return 0n;
  const vanishes = !shape.scaleOnly && value.kind === "finite" && roundMagnitude(format, shape, value, options) === 0n;
  return vanishes || options.overflow === "saturate" || !shape.hasNaN ? 0n : shape.nanCode;
}

// The code of a number in a format: one rounding from the exact value. The policy is labkit.numbers.encode's.
export function encode(value, format, { rounding = "nearest_even", overflow = "ieee", draw = finite(0n) } = {}) {
  const shape = shapeOf(format);
  const options = { rounding, overflow, draw };
  if (value.kind === "nan") {
    if (!shape.hasNaN) throw new Error(`${format.name} has no NaN: each of its codes is a number.`);
    return withSign(shape, shape.nanCode, value.negative);
  }
  if (!format.signed && value.negative) return negativeInUnsigned(format, shape, value, options);
  if (isZero(value)) return withSign(shape, 0n, value.negative);
  let magnitude = value.kind === "infinity" ? null : roundMagnitude(format, shape, value, options);
  if (magnitude === null || magnitude > shape.maxCode) magnitude = staysFinite(value, options) ? shape.maxCode : beyondMax(shape);
  return withSign(shape, magnitude, value.negative);
}

// ---- order, neighbours, spacing ---------------------------------------------------------------------------------

// The bits as an unsigned number that sorts as the values do; the NaN of a "fnuz" format comes last.
export function orderKey(format, code) {
  const { shape, negative } = split(format, code);
  const all = (1n << BigInt(shape.bits)) - 1n;
  if (format.specials === "fnuz" && code === shape.signBit) return all;
  if (negative) return code ^ all;
  return format.specials === "fnuz" ? code + shape.signBit - 1n : code | shape.signBit;
}

// The neighbouring code (IEEE 754 nextUp): infinities, NaNs and the ends of formats without infinities stay where they are.
export function nextUp(format, code) {
  const { shape, negative, magnitude } = split(format, code);
  if (isNaNCode(format, shape, negative, magnitude)) return code;
  if (negative) return magnitude === 0n ? 1n : withSign(shape, magnitude - 1n, true);
  const top = shape.hasInfinity ? shape.top : shape.maxCode;
  return magnitude < top ? magnitude + 1n : top;
}

export function nextDown(format, code) {
  const { shape, negative, magnitude } = split(format, code);
  if (isNaNCode(format, shape, negative, magnitude)) return code;
  if (!format.signed) return magnitude > 0n ? magnitude - 1n : 0n;
  if (code === 0n) return shape.signBit | 1n;
  return negateCode(format, nextUp(format, negateCode(format, code)));
}

// The spacing at a code (of its binade), as a number; null for infinities and NaNs.
export function ulp(format, code) {
  const { exponent } = fields(format, code);
  return exponent === null ? null : finite(...power2(exponent - format.fraction_bits));
}

export function negateCode(format, code) {
  const { shape, magnitude } = split(format, code);
  return magnitude === 0n && !shape.hasNegativeZero ? code : code ^ shape.signBit;
}

// Named codes of a format, in the order of a menu; a name is absent where the format has no such value.
export function specialCodes(format) {
  const shape = shapeOf(format);
  const normal = 1n << BigInt(format.fraction_bits);
  const table = [];
  const put = (name, code) => table.push([name, code]);
  if (!shape.scaleOnly) put("zero", 0n);
  if (shape.hasNegativeZero) put("negative zero", shape.signBit);
  if (format.fraction_bits > 0) {
    put("smallest subnormal", 1n);
    put("largest subnormal", normal - 1n);
  }
  if (shape.maxCode >= normal || shape.scaleOnly) put("smallest normal", shape.scaleOnly ? 0n : normal);
  const one = encode(finite(1n), format, { overflow: "saturate" });
  if (compare(decode(format, one), finite(1n)) === 0) {
    put("one", one);
    if (one < shape.maxCode) put("next above one", one + 1n);
  }
  put("largest finite", shape.maxCode);
  if (shape.signBit) put("most negative finite", shape.maxCode | shape.signBit);
  if (shape.hasInfinity) {
    put("infinity", shape.top);
    if (shape.signBit) put("negative infinity", shape.top | shape.signBit);
  }
  if (shape.hasNaN) put(format.specials === "ieee" ? "quiet NaN" : "NaN", shape.nanCode);
  if (format.specials === "ieee" && format.fraction_bits > 1) put("signalling NaN", shape.top | 1n);
  return table;
}

// ---- writing numbers --------------------------------------------------------------------------------------------

const MINUS = "\u2212";

// num/2^places = digits × 10^exponent exactly, because 2^-n = 5^n / 10^n.
function decimalParts({ num, den }) {
  const places = bitLength(den) - 1;
  const digits = (num * 5n ** BigInt(places)).toString();
  const kept = digits.replace(/0+$/, "");
  return { digits: kept, exponent: digits.length - kept.length - places };
}

// Zeros that only hold a place are written out where they are few, or true and not very many.
function layOut(digits, exponent, negative, exact = true) {
  const sign = negative ? "-" : "";
  const point = digits.length + exponent;
  if (exponent >= 0 && (exact ? point <= 24 : exponent <= 3)) return sign + digits + "0".repeat(exponent);
  if (exponent < 0 && point > 0) return sign + digits.slice(0, point) + "." + digits.slice(point);
  if (exponent < 0 && point > -4) return sign + "0." + "0".repeat(-point) + digits;
  return sign + digits[0] + (digits.length > 1 ? "." + digits.slice(1) : "") + "e" + (point - 1);
}

function special(value) {
  if (value.kind === "nan") return "nan";
  if (value.kind === "infinity") return value.negative ? "-inf" : "inf";
  return value.num === 0n ? (value.negative ? "-0" : "0") : null;
}

// Every digit of a number whose denominator is a power of two, as every code's is; `parseNumber` reads it back.
export function exactDecimal(value) {
  const named = special(value);
  if (named !== null) return named;
  const { digits, exponent } = decimalParts(value);
  return layOut(digits, exponent, value.negative);
}

// The same without an exponent, however long.
export function plainDecimal(value) {
  if (special(value) !== null) return special(value);
  const { digits, exponent } = decimalParts(value);
  const padded = digits.padStart(1 - exponent, "0");
  const text = exponent < 0 ? `${padded.slice(0, exponent)}.${padded.slice(exponent)}` : digits + "0".repeat(exponent);
  return (value.negative ? "-" : "") + text;
}

// num/den rounded (half to even) to `significant` decimal digits: {digits, exponent, exact}.
function roundedDigits({ num, den }, significant) {
  let power = Math.floor((floorLog2(num, den) * 30103) / 100000) - significant;
  for (;;) {
    // The guess from log10(2) can be one short; a second pass then has one digit too many.
    const top = power < 0 ? num * 10n ** BigInt(-power) : num;
    const bottom = power > 0 ? den * 10n ** BigInt(power) : den;
    let quotient = top / bottom;
    const remainder = top - quotient * bottom;
    if (quotient >= 10n ** BigInt(significant)) {
      power += 1;
      continue;
    }
    const twice = 2n * remainder;
    if (twice > bottom || (twice === bottom && quotient & 1n)) quotient += 1n;
    return { digits: quotient.toString(), exponent: power, exact: remainder === 0n };
  }
}

// At most `significant` digits; `exact` says whether they are all there are.
export function shortDecimal(value, significant = 17) {
  const named = special(value);
  if (named !== null) return { text: named, exact: true };
  const rounded = roundedDigits(value, significant);
  const kept = rounded.digits.replace(/0+$/, "");
  const exponent = rounded.exponent + rounded.digits.length - kept.length;
  return { text: layOut(kept, exponent, value.negative, rounded.exact), exact: rounded.exact };
}

const SUPERSCRIPTS = { "-": "\u207b", 0: "\u2070", 1: "\u00b9", 2: "\u00b2", 3: "\u00b3", 4: "\u2074", 5: "\u2075", 6: "\u2076", 7: "\u2077", 8: "\u2078", 9: "\u2079" };
export const power = (exponent) => "2" + String(exponent).replace(/[-\d]/g, (sign) => SUPERSCRIPTS[sign]);

// For reading: a true minus sign, and "≈" before what was cut.
export function pretty(value, significant = 17) {
  const { text, exact } = shortDecimal(value, significant);
  return (exact ? "" : "≈ ") + text.replace(/-/g, MINUS);
}
