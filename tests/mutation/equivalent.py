"""Mutants that no test can kill, because what they change cannot be seen: (file, function, change) -> why."""

from __future__ import annotations

_CANDIDATES, _CORE, _TERMS = "admin_server/candidates.py", "admin_server/lease_core.py", "admin_server/lease_terms.py"
_SET_BY_EVERY_GRANT = "read only while somebody holds the lease, and every grant and restoration sets it"
_CONTACT, _VIEW, _PEERS = "feedcore/lease/admin_contact.py", "feedcore/lease/lease_view.py", "feedcore/lease/peers.py"
_NEXT_IS_LARGER = "the next number is always larger than the newest epoch; the other bound is a second line of defence"
_SET_BEFORE_READ = "read only after a longer term was noted, which sets it"
_SET_BY_HEARING = "read only after an admin server was heard, which sets it"
_SET_BY_AN_OUTAGE = "read only while the adapter settles after an outage, whose end sets it"
_SET_BY_THE_GRANT = "read only while an epoch is held, and its grant sets it"
_SETS_WHAT_IS_SET = "of two equal numbers it does not matter which is kept"
_ONLY_ITS_TRUTH = "only its truth is asked"
_LATER_THAN_ANY_TIME = "any number larger than every time serves as the start of a minimum"

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        _CANDIDATES,
        "Candidates.best",
        "- return min(order)[-1] if order else None\n+ return min(order)[--1] if order else None",
    ): "each entry is a pair, whose last is its second",
    (
        _CORE,
        "FeedLease.__init__",
        "- self.next_epoch_number = 1\n+ self.next_epoch_number = 0",
    ): "a new epoch is at least the newest one and one more, so the first is 1 either way",
    (_CORE, "FeedLease.__init__", "- self._until_ns = 0\n+ pass"): _SET_BY_EVERY_GRANT,
    (_CORE, "FeedLease.__init__", "- self._until_ns = 0\n+ self._until_ns = 1"): _SET_BY_EVERY_GRANT,
    (_TERMS, "Terms.__init__", "- self._longest_until_ns = 0\n+ pass"): _SET_BEFORE_READ,
    (_TERMS, "Terms.__init__", "- self._longest_until_ns = 0\n+ self._longest_until_ns = 1"): _SET_BEFORE_READ,
    (
        _CORE,
        "FeedLease._new_epoch",
        "- epoch = max(self.epoch + 1, self.next_epoch_number)\n+ epoch = max(self.epoch - 1, self.next_epoch_number)",
    ): _NEXT_IS_LARGER,
    (
        _CORE,
        "FeedLease._new_epoch",
        "- epoch = max(self.epoch + 1, self.next_epoch_number)\n+ epoch = max(self.epoch + 0, self.next_epoch_number)",
    ): _NEXT_IS_LARGER,
    (
        _CORE,
        "FeedLease.refusal_to_fail",
        "- others = [each for each in in_sync if each != adapter_id]\n+ others = [each for each in in_sync]",
    ): "the case that the adapter is the only one in sync has been refused above",
    (_CORE, "FeedLease._may_renew", "- return False\n+ return None"): _ONLY_ITS_TRUTH,
    (
        _CORE,
        "FeedLease._may_renew",
        "- return self.holder <= 0 and adapter_id == self._last_holder and self.candidates.may_be_active(adapter_id)\n"
        "+ return True and adapter_id == self._last_holder and self.candidates.may_be_active(adapter_id)",
    ): "the last holder of the newest epoch is the holder, if there is one",
    (
        _CORE,
        "FeedLease._may_renew",
        "- return self.holder <= 0 and adapter_id == self._last_holder and self.candidates.may_be_active(adapter_id)\n"
        "+ return self.holder <= 1 and adapter_id == self._last_holder and self.candidates.may_be_active(adapter_id)",
    ): "the last holder of the newest epoch is the holder, if there is one",
    (
        "admin_server/start_book.py",
        "StartBook.note_counters",
        "- if counter > known and channel_id in self._channel_ids:\n"
        "+ if counter >= known and channel_id in self._channel_ids:",
    ): _SETS_WHAT_IS_SET,
    (_CONTACT, "AdminContact.__init__", "- self._epoch_in_contact = 0\n+ pass"): _SET_BY_HEARING,
    (_CONTACT, "AdminContact.__init__", "- self._epoch_in_contact = 0\n+ self._epoch_in_contact = 1"): _SET_BY_HEARING,
    (_CONTACT, "AdminContact.__init__", "- self._epoch_before_outage = 0\n+ pass"): _SET_BY_AN_OUTAGE,
    (
        _CONTACT,
        "AdminContact.__init__",
        "- self._epoch_before_outage = 0\n+ self._epoch_before_outage = 1",
    ): _SET_BY_AN_OUTAGE,
    (_VIEW, "LeaseView.__init__", "- self._valid_until_ns = 0\n+ pass"): _SET_BY_THE_GRANT,
    (_VIEW, "LeaseView.__init__", "- self._valid_until_ns = 0\n+ self._valid_until_ns = 1"): _SET_BY_THE_GRANT,
    (_VIEW, "LeaseView.on_granted", "- return False\n+ return None"): _ONLY_ITS_TRUTH,
    (_PEERS, "Peers.note", "- return False\n+ return None"): _ONLY_ITS_TRUTH,
    (_PEERS, "Peers.consent_until_ns", "- until_ns = 1 << 62\n+ until_ns = 2 << 62"): _LATER_THAN_ANY_TIME,
    (_PEERS, "Peers.consent_until_ns", "- until_ns = 1 << 62\n+ until_ns = 1 << 63"): _LATER_THAN_ANY_TIME,
    (_PEERS, "Peers.consent_until_ns", "- until_ns = 1 << 62\n+ until_ns = 1 << 61"): _LATER_THAN_ANY_TIME,
}
