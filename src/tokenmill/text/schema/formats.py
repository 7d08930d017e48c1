"""Formats that llguidance reads wider than those who check them, as expressions of whole texts.

It takes February 29 of every year, the year 0 and second 60, durations of any length, and addresses in domains
without a dot, which jsonschema's format checker, pydantic or Python's datetime refuse.
"""

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"  # the multiples of four up to 96
_LEAP_YEAR = f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_DAYS_31, _DAYS_30 = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])", "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_DAY = f"(?:{_DAYS_31}|{_DAYS_30}|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[zZ]|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

_OF_DAYS = "(?:[0-9]{1,5}Y(?:[0-9]{1,5}M(?:[0-9]{1,7}D)?)?|[0-9]{1,5}M(?:[0-9]{1,7}D)?|[0-9]{1,7}D)"
_OF_HOURS = "T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,7}S)?)?|[0-9]{1,6}M(?:[0-9]{1,7}S)?|[0-9]{1,7}S)"

_IN_NAME = r"[A-Za-z0-9!#$%&'*+\-/=?^_`{|}~]"
_NAME = rf"(?:{_IN_NAME}{{1,64}}|{_IN_NAME}(?:\.?{_IN_NAME}){{0,31}})"
_LABEL = "[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,20}){0,2}"

FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[tT]{_TIME}$",
    "duration": f"^P(?:{_OF_DAYS}(?:{_OF_HOURS})?|{_OF_HOURS}|[0-9]{{1,7}}W)$",
    "email": rf"^{_NAME}@(?:{_LABEL}\.)+[A-Za-z]{{2,20}}$",
}
_OF_HOST = "[A-Za-z0-9](?:[A-Za-z0-9\\-]{0,61}[A-Za-z0-9])?"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

OTHERS = {
    "hostname": rf"^{_OF_HOST}(?:\.{_OF_HOST})*$",
    "ipv4": rf"^{_BYTE}(?:\.{_BYTE}){{3}}$",
    "uuid": "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
}
"""Formats that llguidance reads well, for texts of which it does not read the rest."""

LONGEST = {"email": 254, "hostname": 253}
"""Characters of a text of a format."""
