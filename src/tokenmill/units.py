"""Numbers with their units, as people read them: `2 tokens`, `1.5 kB`."""


def counted(number: int, word: str) -> str:
    """Count as people write: 1 → "1 token", 2 → "2 tokens"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def size(num_bytes: float) -> str:
    """Write a size as 1536 → "1.5 kB"; decimal units, as disks and papers count."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
