"""The journal of measured answers, from which every other result file is derived.

``answers.jsonl`` holds one line per answer, written when it is measured; so a run that was broken
off continues where it stopped, and a finished cell is never measured again. ``cells.jsonl``,
``steps.jsonl``, ``table.md`` and the plots are rewritten from it.

A session is one set of rows measured together, interleaved; a cell's speed-up is always taken
within its session.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launch.bench.cells import Answer, Row, Settings, make_cell
from launch.bench.runs import Run, run_from_json, run_to_json
from launch.bench.workloads import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Rows measured together under the same settings."""

    settings: Settings
    rows: tuple[Row, ...]
    command: str = field(compare=False)
    versions: dict[str, str] = field(compare=False)

    @property
    def key(self) -> str:
        """Equal for equal settings and rows, whatever the command was called."""
        identity = json.dumps([asdict(self.settings), [asdict(row) for row in self.rows]])
        return hashlib.sha256(identity.encode()).hexdigest()[:12]


class Journal:
    """All sessions in one result directory."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "answers.jsonl"
        self._sessions: dict[str, Session] = {}
        self._runs: dict[str, dict[tuple[str, str], Run]] = {}
        self._lengths: dict[str, int] = {}
        for line in _complete_lines(self._file):
            self._read(line)

    def open(self, session: Session) -> None:
        """Continue ``session``, or begin it."""
        if session.key not in self._sessions:
            self._write({"session": session.key, **asdict(session)})

    def missing(self, session: Session, prompts: Iterable[Prompt]) -> list[Prompt]:
        """Prompts of which some row is not measured; they are measured again, all rows together."""
        runs = self._runs.get(session.key, {})
        rows = session.rows
        return [p for p in prompts if any((row.label, p.name) not in runs for row in rows)]

    def add(self, session: Session, label: str, prompt: Prompt, run: Run) -> None:
        """Note one answer."""
        self._write(
            {
                "answer": session.key,
                "label": label,
                "prompt": prompt.name,
                "prompt_length": len(prompt.token_ids),
                "run": run_to_json(run),
            }
        )

    def is_finished(self, settings: Settings, row: Row) -> bool:
        """Whether a row need not be measured again under these settings."""
        sessions = (session for session, _ in self._finished() if session.settings == settings)
        return any(row.identity == old.identity for session in sessions for old in session.rows)

    def cells(self) -> list[dict[str, Any]]:
        """Finished cells; of a row measured in two sessions the one beside more rows counts."""
        cells: dict[tuple[Settings, str], dict[str, Any]] = {}
        for session, runs in sorted(self._finished(), key=lambda item: -len(item[0].rows)):
            for row in session.rows:
                key = (session.settings, row.identity)
                if key not in cells:
                    cells[key] = self._cell(session, row, runs)
        return list(cells.values())

    def steps(self) -> Iterator[dict[str, Any]]:
        """One line per step of every finished session."""
        for session, runs in self._finished():
            methods = {row.label: row.method for row in session.rows}
            for (label, prompt), run in runs.items():
                names = {"request": prompt, "method": methods[label], "label": label}
                for record in run.records:
                    yield {**asdict(record), **names, "session": session.key}

    def _finished(self) -> Iterator[tuple[Session, dict[tuple[str, str], Run]]]:
        for key, session in self._sessions.items():
            runs = self._runs.get(key, {})
            if len(runs) == session.settings.prompts * len(session.rows):
                yield session, runs

    def _cell(self, session: Session, row: Row, runs: dict[tuple[str, str], Run]) -> dict[str, Any]:
        answers = [
            Answer(
                prompt=prompt,
                prompt_length=self._lengths[prompt],
                run=run,
                base=runs[(row.base, prompt)],
            )
            for (label, prompt), run in runs.items()
            if label == row.label
        ]
        return make_cell(
            session.settings, row, answers, command=session.command, versions=session.versions
        )

    def _write(self, fields: dict[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")
        self._read(json.loads(json.dumps(fields)))

    def _read(self, fields: dict[str, Any]) -> None:
        if "session" in fields:
            session = Session(
                settings=Settings(**fields["settings"]),
                rows=tuple(Row(**row) for row in fields["rows"]),
                command=fields["command"],
                versions=fields["versions"],
            )
            self._sessions[fields["session"]] = session
            return
        runs = self._runs.setdefault(fields["answer"], {})
        runs[(fields["label"], fields["prompt"])] = run_from_json(fields["run"])
        self._lengths[fields["prompt"]] = fields["prompt_length"]


def _complete_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Lines of the journal; a last line cut off by a crash is dropped from the file."""
    if not file.exists():
        return
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole, encoding="utf-8")
    for line in whole.splitlines():
        yield json.loads(line)
