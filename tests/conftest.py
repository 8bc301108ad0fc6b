"""What all tests share. Examples of property tests are not timed: the machine's speed is not what they are about."""

from hypothesis import HealthCheck, settings

settings.register_profile("billing-shards", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("billing-shards")
