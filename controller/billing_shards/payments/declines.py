"""Decline codes and what they mean. Facts from the card networks' and providers' published tables.

An issuer's advice outranks the code: it speaks of this card, the code of a kind of refusal.
"""

from __future__ import annotations

from billing_shards.payments.model import DeclineClass

_CLASSES: dict[str, DeclineClass] = {
    **dict.fromkeys(
        (
            "lost_card",
            "stolen_card",
            "pickup_card",
            "fraudulent",
            "merchant_blacklist",
            "restricted_card",
            "security_violation",
            "stop_payment_order",
            "revocation_of_authorization",
            "revocation_of_all_authorizations",
            "highest_risk_level",
            "transaction_not_allowed",
            "do_not_try_again",
        ),
        DeclineClass.HARD,
    ),
    **dict.fromkeys(
        (
            "expired_card",
            "incorrect_number",
            "invalid_number",
            "invalid_account",
            "invalid_cvc",
            "incorrect_cvc",
            "invalid_expiry_month",
            "invalid_expiry_year",
            "card_not_supported",
            "currency_not_supported",
            "new_account_information_available",
            "resource_missing",
            "payment_method_unexpected_state",
            "payment_method_not_available",
            # Of bank debits.
            "account_closed",
            "no_account",
            "invalid_account_number",
            "bank_account_restricted",
            "debit_not_authorized",
        ),
        DeclineClass.NEW_METHOD,
    ),
    **dict.fromkeys(("authentication_required", "incorrect_pin", "offline_pin_required"), DeclineClass.CUSTOMER),
}
_ADVICE: dict[str, DeclineClass] = {
    "do_not_try_again": DeclineClass.HARD,
    "confirm_card_data": DeclineClass.NEW_METHOD,
    "try_again_later": DeclineClass.RETRYABLE,
}


def classify(code: str, advice: str | None) -> DeclineClass:
    """The class of a decline; codes that nobody has listed may be retried, within the policy's bounds."""
    if advice in _ADVICE:
        return _ADVICE[advice]
    return _CLASSES.get(code, DeclineClass.RETRYABLE)
