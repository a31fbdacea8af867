"""The live stream as a model: what Valkey and its scripts do, in memory. tests/integration compares the two."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from perdure.core.events.stream import CallKey, Cursor, StreamMark, TokenBatch, TokenEntry, entry_order


@dataclass
class Fence:
    attempt: int = -1
    end: int = 0
    chained_from: int = 0
    epoch: str = ""
    first: str = ""
    last: str = ""
    thought: int = 0


@dataclass
class LiveModel:
    epoch: str = ""
    entries: list[TokenEntry] = field(default_factory=list)
    chains: dict[str, int] = field(default_factory=dict)
    fences: dict[CallKey, Fence] = field(default_factory=dict)
    made: int = 0
    epochs: int = 0

    def append(
        self, key: CallKey, epoch: int, start: int, text: str, *, thinking: bool = False, thought: int = 0
    ) -> str:
        fence = self.fences.get(key) or Fence()
        if epoch < fence.attempt:
            return "stale"
        if epoch == fence.attempt and (start < fence.end or thought < fence.thought):
            return "accepted"
        if not self.epoch or not self.entries:
            self.epochs += 1
            self.epoch = f"e{self.epochs}"
            self.entries = []
        is_new, same_epoch = epoch > fence.attempt, fence.epoch == self.epoch
        first = ""
        if is_new:
            if fence.attempt >= 0:
                first = self._add(key, epoch, 0, "", 0, begins=True)
            fence.end, fence.chained_from = 0, 0
        if start > fence.end or (not is_new and not same_epoch):
            fence.chained_from = start
        fence.last = self._add(key, epoch, start, text, fence.chained_from, thinking=thinking, thought=thought)
        if is_new or not same_epoch:
            fence.first = first or fence.last
        fence.attempt, fence.end, fence.epoch = epoch, start + (0 if thinking else len(text)), self.epoch
        fence.thought = thought + (len(text) if thinking else 0)
        self.fences[key] = fence
        return "accepted"

    def _add(
        self,
        key: CallKey,
        epoch: int,
        start: int,
        text: str,
        chain: int,
        *,
        begins: bool = False,
        thinking: bool = False,
        thought: int = 0,
    ) -> str:
        self.made += 1
        entry_id = f"{1_000 + self.made // 3}-{self.made % 3}"
        self.chains[entry_id] = chain
        self.entries.append(TokenEntry(entry_id, *key, epoch, start, text, begins, thinking, thought))
        return entry_id

    def flush(self) -> None:
        self.epoch, self.entries, self.fences = "", [], {}

    def trim(self, kept: int) -> None:
        """MAXLEN, never to nothing."""
        self.entries = self.entries[-max(kept, 1) :]

    def tokens(self, epoch: str, entry_id: str, most: int = 200) -> TokenBatch:
        if not self.epoch:
            return TokenBatch(None)
        after = entry_order(entry_id) if epoch == self.epoch else (-1, 0)
        found = [entry for entry in self.entries if entry_order(entry.id) > after][:most]
        return TokenBatch(self.epoch, found, more=len(found) == most)

    def marks(self, cursor: Cursor, keys: Sequence[CallKey]) -> dict[CallKey, StreamMark]:
        found: dict[CallKey, StreamMark] = {}
        at = entry_order(cursor.entry_id)
        for key in keys:
            fence = self.fences.get(key)
            if fence is None or not self.epoch or fence.epoch != self.epoch or self.epoch != cursor.epoch:
                continue
            if entry_order(fence.first) > at:
                found[key] = StreamMark(fence.attempt, 0, fence.chained_from == 0, begun=False)
            elif entry_order(fence.first) < entry_order(self.entries[0].id):
                continue  # its beginning was trimmed
            elif entry_order(fence.last) <= at:
                found[key] = StreamMark(fence.attempt, fence.end, fence.chained_from == 0, thought=fence.thought > 0)
            else:
                before = [e for e in self.entries if e.key == key and entry_order(e.id) <= at]
                if before:
                    entry = before[-1]
                    shown = entry.start + (0 if entry.thinking else len(entry.text))
                    thought = entry.thinking or entry.thought > 0
                    found[key] = StreamMark(entry.attempt, shown, self.chains[entry.id] == 0, thought=thought)
        return found
