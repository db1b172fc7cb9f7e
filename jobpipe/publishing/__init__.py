"""The publishing side, without Spark. ``jobpipe.publisher(...)``, the function of that name, is in :mod:`.plain`.

Importing any module of this package puts the package itself where the function should be found, as an attribute of
``jobpipe``. So the package can be called, and calls the function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobpipe.publishing.plain_publisher import PlainPublisher


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> PlainPublisher:
        made: PlainPublisher = self.__wrapped__(*args, **kwargs)
        return made

    @property
    def __wrapped__(self) -> Any:  # what inspect.signature() and help() show
        from jobpipe.publishing.plain_publisher import publisher

        return publisher


sys.modules[__name__].__class__ = _CallablePackage
