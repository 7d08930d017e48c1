"""placeholder"""

from typing import Any


def render_chat(
    template: str | None,
    messages: list[dict[str, Any]],
    *,
    special_texts: dict[str, str],
    add_generation_prompt: bool = True,
    **variables: Any,
) -> str:
    import jinja2

    return (
        jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        .from_string(template)
        .render(messages=messages, add_generation_prompt=add_generation_prompt, **special_texts)
    )
