"""Formats that llguidance reads wider than those who check them, as expressions of whole texts.

It takes February 29 of every year, the year 0 and second 60, which jsonschema's format checker, pydantic and Python's
datetime refuse.
"""

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"  # the multiples of four up to 96
_LEAP_YEAR = f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[zZ]|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}[tT]{_TIME}$"}
