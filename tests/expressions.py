"""Random SQL92 expressions, with the mistakes that people make, and messages for them."""

from __future__ import annotations

import random

NAMES = ["a", "b", "_c$1", "TAGS"]
#: what properties hold; `=` and `>` make numbers of them, which fails for some
TEXTS = ["0", "1", "-1", "5", "+7", "12", "1.5", "-2.5", "1e3", "2147483648", "-9223372036854775808", "NaN", "Infinity"]
TEXTS += ["-0.0", " 3 ", "3d", "0x1p3", "true", "TRUE", "false", "x", "hello", "it's", "日本", "1_000", "٣"]
NUMBERS = [
    "0",
    "1",
    "5",
    "12",
    "7L",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "1.5",
    "5.",
    ".5",
    "1e3",
    "0.0",
]
NUMBERS += ["9223372036854775808", "1e400", "012"]
WORDS_OF_5 = ["CONTAINS", "STARTSWITH", "ENDSWITH"]


class Generator:
    """Random expressions: mostly of the grammar, with the mistakes that people make."""

    def __init__(self, rng: random.Random, words: list[str]):
        self.rng = rng
        self.words = words

    def text(self) -> str:
        return "'" + self.rng.choice(TEXTS).replace("'", "''") + "'"

    def value(self) -> str:
        pick = self.rng.randrange(20)
        if pick < 9:
            return self.rng.choice(NAMES)
        if pick < 14:
            return self.rng.choice(["", "", "-", "+", "- "]) + self.rng.choice(NUMBERS)
        if pick < 17:
            return self.text()
        return self.rng.choice(["TRUE", "false", "NULL", "-b", "(a)", "NOT a", "(a > 3)", "''"])

    def comparison(self) -> str:
        pick, left = self.rng.randrange(16), self.value()
        no = self.rng.choice(["", "", "NOT ", "not "])
        if pick < 8:
            return f"{left} {self.rng.choice(['=', '<>', '>', '>=', '<', '<='])} {self.value()}"
        if pick < 10:
            return f"{left} {no}BETWEEN {self.value()} AND {self.value()}"
        if pick < 12:
            return f"{left} {no}IN ({', '.join(self.text() for _ in range(self.rng.randint(1, 6)))})"
        if pick < 14:
            return f"{left} IS {no}NULL"
        if self.words:
            return f"{left} {no}{self.rng.choice(self.words)} {self.text()}"
        return left

    def condition(self, depth: int) -> str:
        if depth == 0 or self.rng.random() < 0.3:
            return self.comparison()
        left, right = self.condition(depth - 1), self.condition(depth - 1)
        return self.rng.choice(
            ["{} AND {}", "{} or {}", "({} OR {}) AND a = 1", "NOT ({}) and {}", "({}) /* x */ OR {}"]
        ).format(left, right)

    def expression(self) -> str:
        made = self.condition(self.rng.randrange(4))
        if self.rng.random() < 0.2:
            at = self.rng.randrange(len(made) + 1)
            noise = self.rng.choice([")", "(", "!", "==", " AND ", "'", "5", " -- x\n", "--", ";", ",", " b ", "."])
            made = made[:at] + noise + made[at + self.rng.randrange(2) :]
        return made

    def message(self) -> dict[str, str]:
        return {name: self.rng.choice(TEXTS) for name in NAMES if self.rng.random() < 0.8}
