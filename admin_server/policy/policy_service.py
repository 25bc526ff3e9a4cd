"""The PolicyAdministration service: reload, explain and show the policy in force."""

from __future__ import annotations

import time

import grpc

from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.policy.policy_keeper import PolicyKeeper
from tandemfeed.admin_server.policy.rules import Action, Rule
from tandemfeed.transport.calls.serving.call_context import caller_of
from tandemfeed.transport.settings_file import SettingsError
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc


class PolicyAdministrationService(admin_pb2_grpc.PolicyAdministrationServicer):
    """For identities that may administer every feed, because a policy shows all identities."""

    def __init__(self, policy: PolicyKeeper, audit: AuditLog) -> None:
        self._policy, self._audit = policy, audit

    def ReloadPolicy(  # noqa: N802
        self, _request: admin_pb2.ReloadPolicyRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ReloadPolicyReply:
        """Read the policy file now."""
        self._require_administration(context)
        try:
            return admin_pb2.ReloadPolicyReply(changed=self._policy.reload(caller_of(context).identity))
        except SettingsError as refused:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{refused}; the former policy stays in force")
        except OSError as failed:
            text = f"the change could not be recorded, so the former policy stays in force: {failed}"
            context.abort(grpc.StatusCode.UNAVAILABLE, text)
        raise AssertionError("abort raises")

    def ExplainPolicy(  # noqa: N802
        self, request: admin_pb2.ExplainPolicyRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ExplainPolicyReply:
        """Whether an identity may do something now, and the rule that decides."""
        self._require_administration(context)
        action = request.action or Action.SUBSCRIBE
        if action not in set(Action):
            text = f"action is {action!r}; it must be one of {', '.join(Action)}"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        rule = self._policy.decide(request.identity, Action(action), request.topic).rule
        reply = admin_pb2.ExplainPolicyReply(
            allowed=rule is not None,
            rule=None if rule is None else _describe(rule),
            file=str(self._policy.path),
            known_identity=request.identity in self._policy.policy.identities,
            is_disabled=request.identity in self._policy.disabled,
        )
        if rule is None and action == Action.SUBSCRIBE:
            self._explain_refused_topic(request, reply)
        return reply

    def _explain_refused_topic(
        self, request: admin_pb2.ExplainPolicyRequest, reply: admin_pb2.ExplainPolicyReply
    ) -> None:
        """What is granted in place of the topic, or would be if its feed were delayed more."""
        policy, now = self._policy.policy, time.time_ns()
        reply.symbols.extend(sorted(self._policy.extent(request.identity, request.topic).symbols or ()))
        for rule in policy.find_rules_at_any_age(request.identity, Action.SUBSCRIBE, request.topic):
            if rule.is_valid_at(now):
                reply.too_young_for.CopyFrom(_describe(rule))
                reply.delay_ns = policy.delay_ns_of(request.topic)
                break

    def ShowPolicy(  # noqa: N802
        self, _request: admin_pb2.ShowPolicyRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ShowPolicyReply:
        """The policy in force."""
        self._require_administration(context)
        policy = self._policy.policy
        return admin_pb2.ShowPolicyReply(
            file=str(self._policy.path),
            loaded_unix_ns=self._policy.loaded_unix_ns,
            refusal=self._policy.refusal,
            identities=[
                admin_pb2.PolicyIdentity(
                    name=each.name,
                    roles=sorted(policy.roles_of(each)),
                    groups=policy.groups_of(each.name),
                    subscription_count_max=each.subscription_count_max or 0,
                    calls_per_second_max=each.calls_per_second_max or 0.0,
                )
                for each in policy.identities.values()
            ],
            rules=[_describe(rule) for rule in policy.rules],
        )

    def _require_administration(self, context: grpc.ServicerContext) -> None:
        identity = caller_of(context).identity
        if not self._policy.is_granted_on_every_feed(identity, Action.ADMINISTER):
            code = grpc.StatusCode.PERMISSION_DENIED
            text = f"{identity} may not administer every feed, which the policy commands require"
            self._audit.refuse(context, code, text, "policy command refused", identity=identity)


def _describe(rule: Rule) -> admin_pb2.PolicyRule:
    return admin_pb2.PolicyRule(
        name=rule.name,
        line=rule.line,
        to=rule.subjects,
        actions=sorted(rule.actions),
        patterns=rule.patterns,
        from_unix_ns=rule.from_unix_ns or 0,
        until_unix_ns=rule.until_unix_ns or 0,
        is_valid_now=rule.is_valid_at(time.time_ns()),
        minimum_age_s=rule.minimum_age_ns / 1e9,
    )
