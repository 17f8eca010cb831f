"""A third of the replies is lost, and every call is done once and answered: decision 0019."""

import pytest

from taskharbor.testing.conformance.ack import *  # noqa: F403
from taskharbor.testing.conformance.cancel import *  # noqa: F403
from taskharbor.testing.conformance.exchange import *  # noqa: F403
from taskharbor.testing.conformance.expiry import *  # noqa: F403
from taskharbor.testing.conformance.retry import *  # noqa: F403

pytestmark = pytest.mark.more("142 cases of the kit, each through a proxy")
