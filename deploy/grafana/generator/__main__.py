"""Writes the dashboards' files."""

from __future__ import annotations

from deploy.grafana.generator.files import FOLDER, made


def main() -> None:
    """Write all of them anew; a file that belongs to none of them goes."""
    texts = made()
    for old in set(FOLDER.glob("*.json")) - {FOLDER / name for name in texts}:
        old.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"deploy/grafana/dashboards/{name}")


if __name__ == "__main__":
    main()
