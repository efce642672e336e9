"""A cookie with a name, signed by this process."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from http.cookies import CookieError, SimpleCookie


class SignedCookie:
    """Writes and reads the cookie; its key lives and dies with the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._key = secrets.token_bytes(32)

    def write(self, value: str) -> str:
        """The `Set-Cookie` field for a value of URL-safe letters."""
        return f"{self._name}={value}.{self._sign(value)}; Path=/; HttpOnly; SameSite=Lax"

    def read(self, field: str) -> str | None:
        """The value in a `Cookie` field; None where it is not there, or not ours."""
        try:
            morsel = SimpleCookie(field).get(self._name)
        except CookieError:
            return None
        value, _, signature = ("" if morsel is None else morsel.value).partition(".")
        given = signature.encode("utf-8", "surrogatepass")
        return value if hmac.compare_digest(given, self._sign(value).encode()) else None

    def _sign(self, value: str) -> str:
        return hmac.new(
            self._key, value.encode("utf-8", "surrogatepass"), hashlib.sha256
        ).hexdigest()
