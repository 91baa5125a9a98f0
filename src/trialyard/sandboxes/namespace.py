"""`NamespaceSandbox`: a box made of Linux namespaces, one writable tmpfs, and cgroups.

bubblewrap makes the namespaces as an unprivileged uid that no other live box has; a small
program of ours is PID 1 inside (native/init.c). How a command or a box ended is decided from
what the kernel says: wait statuses, cgroup counters, pidfds.
"""

import asyncio
import os
import posixpath
from collections.abc import Callable, Mapping

from trialyard.core.errors import SandboxError, SandboxLost, SandboxUnavailable
from trialyard.core.ids import new_id
from trialyard.core.image import Image
from trialyard.core.network import NetworkAttempt
from trialyard.core.sandbox import BoxUser, FileStat, Limits
from trialyard.sandboxes.box_commands import BoxCommands
from trialyard.sandboxes.box_content import BoxContent
from trialyard.sandboxes.box_process import BoxProcess, outside_evidence
from trialyard.sandboxes.box_view import HOST_OUT_OF_MEMORY, Counters
from trialyard.sandboxes.cgroups import BoxCgroup
from trialyard.sandboxes.command_methods import CommandMethods
from trialyard.sandboxes.files import BoxFiles
from trialyard.sandboxes.host import SandboxHost
from trialyard.sandboxes.network.box import BoxNetwork
from trialyard.sandboxes.owner import IDS_PER_RANGE
from trialyard.sandboxes.plan import visible_cpus
from trialyard.sandboxes.request import ROOT_ENV
from trialyard.sandboxes.shell import ShelledBox
from trialyard.sandboxes.users import Account, own_user, root_user
from trialyard.sandboxes.zygote import Zygotes

START_TIMEOUT_S = 20.0
_REMOVE_TIMEOUT_S = 10.0
_DEADLINE_GRACE_S = 0.25
"""A command's own clock ends it at `wall_s`; the box goes a moment later."""


class NamespaceSandbox(CommandMethods):
    """One live box on a `SandboxHost`. Made by `launch`; see core/sandbox.py for the contract."""

    def __init__(
        self,
        host: SandboxHost,
        image: Image,
        limits: Limits,
        workdir: str,
        user: BoxUser,
        uid: int,
    ) -> None:
        self._id = new_id("box")
        self._host = host
        self._limits = limits
        self._workdir = posixpath.normpath(workdir)
        self._user: BoxUser = user
        self._uid = uid
        plan = host.plan(image, limits, workdir, user)
        self._cgroup, group_steps = host.cgroups.prepare(f"u{uid}", limits, apart=plan.apart)
        self._image = image
        self._tree = host.tree(image)
        self.owner = ""
        """Who leases the box; its snapshots are theirs."""
        self._loop = asyncio.get_running_loop()
        self._deadline_s = float("inf")
        self._deadline: asyncio.TimerHandle | None = None
        self._first_cpu_us: int | None = None
        self._why = self._host_evidence = ""
        self._end: asyncio.Task[None] | None = None
        self._lost: asyncio.Future[SandboxLost] = self._loop.create_future()
        self._files: BoxFiles
        self._network = BoxNetwork(limits)
        self._saving = asyncio.Lock()
        self._release_image: Callable[[], None]
        self.leaked = False
        self._table = host.owner.table
        kind = (image.name, limits, self._workdir, user)
        self._table.starting(self._id, kind, uid, self._loop.time())
        try:
            self._process = BoxProcess(
                plan.argv(group_steps, uid),
                uid,
                upper=self._tree.upper,
                on_reply=lambda reply: self._commands.take(reply),
                on_end=self._on_end,
            )
        except BaseException:
            self._table.ended(self._id)
            raise
        self._commands = BoxCommands(self, self._process, self._cgroup, uid)

    @classmethod
    async def launch(
        cls,
        host: SandboxHost,
        image: Image,
        limits: Limits,
        workdir: str = "/work",
        user: BoxUser = "user",
    ) -> "NamespaceSandbox":
        """A fresh box, ready for commands. Raises `SandboxUnavailable` if it cannot start."""
        host.plan(image, limits, workdir, user)
        uid = host.ids(user).take()
        try:
            release = host.snapshots.hold_image(image)
            try:
                box = cls(host, image, limits, workdir, user, uid)
            except BaseException:
                release()
                raise
        except BaseException:
            host.ids(user).give_back(uid)
            raise
        box._release_image = release
        try:
            await asyncio.wait_for(asyncio.shield(box._process.ready), START_TIMEOUT_S)
        except (SandboxError, TimeoutError) as error:
            said = box._process.said()
            await box.close()
            raise SandboxUnavailable(
                f"a box did not start: {said or error}. `trialyard doctor` checks this host."
            ) from error
        except BaseException:
            await box.close()
            raise
        box._files = BoxFiles(box._process.root_fd, box.host_uids, box._workdir)
        box._table.ready(box._id, box._process.init_pid)
        return box

    def lend(self, owner: str, ttl_s: float) -> None:
        """From now on the box is `owner`'s and has `ttl_s` to live."""
        self.owner = owner
        self._deadline_s = self._loop.time() + ttl_s
        self._table.leased(self._id, owner, self._deadline_s)
        self._deadline = self._loop.call_later(ttl_s + _DEADLINE_GRACE_S, self._expire, ttl_s)

    def _expire(self, ttl_s: float) -> None:
        self._commands.out_of_time()
        name = "wall_s" if ttl_s == self._limits.wall_s else "ttl_s"
        self.destroy(f"its {name} of {ttl_s} s ran out")

    # --- what others see of the box -------------------------------------------------------

    @property
    def id(self) -> str:
        return self._id

    @property
    def workdir(self) -> str:
        return self._workdir

    @property
    def image(self) -> Image:
        return self._image

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def not_enforced(self) -> frozenset[str]:
        """Limits that this host cannot hold, where the caller said best-effort."""
        return self._cgroup.not_enforced

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def cgroup(self) -> BoxCgroup:
        """The box's control groups, for looking at."""
        return self._cgroup

    @property
    def host_uid(self) -> int:
        """The uid that the box's processes have on the host; with root inside, root's."""
        return self._uid

    @property
    def host_uids(self) -> range:
        """All uids that the box's processes can have on the host."""
        return range(self._uid, self._uid + (IDS_PER_RANGE if self._user == "root" else 1))

    @property
    def user(self) -> BoxUser:
        return self._user

    @property
    def host_pid(self) -> int:
        """The host's pid of the box's PID 1."""
        return self._process.init_pid

    @property
    def alive(self) -> bool:
        return self._end is None

    def counters(self) -> Counters:
        group = self._cgroup
        group.sample_peaks()
        return Counters(
            group.cpu_us(),
            *group.kills_for_memory(),
            group.pids_refused(),
            self._network.throttled,
        )

    def peaks(self) -> tuple[int, int]:
        return self._cgroup.memory_peak_bytes(), self._cgroup.pids_peak()

    def full(self) -> frozenset[str]:
        """Which of disk and inodes the box has used up."""
        if self._process.root_fd < 0:
            return frozenset()
        disk = os.fstatvfs(self._process.root_fd)
        full = [("disk", disk.f_bavail == 0), ("inodes", disk.f_favail == 0)]
        return frozenset(name for name, is_full in full if is_full)

    def wall_left_s(self) -> float:
        return self._deadline_s - self._loop.time()

    def cpu_used_s(self, now: Counters) -> float:
        if self._first_cpu_us is None:
            self._first_cpu_us = now.cpu_us
        return (now.cpu_us - self._first_cpu_us) / 1e6

    # --- commands -----------------------------------------------------------------------

    def _view(self) -> ShelledBox:
        return self

    async def _ready_for_command(self) -> None:
        await self.check_alive()
        await self._network.open(self._process.init_pidfd)

    def _warm(self) -> Zygotes | None:
        is_ordinary = self._image.on_host and self._user == "user"
        return self._host.zygotes if is_ordinary else None

    def _account(self, user: str | int) -> Account | None:
        if self._user == "root":
            return root_user(self._files.read, user)
        own_user(self._files.read, user)
        return None

    def _env(self) -> dict[str, str]:
        """This box's own defaults. `nproc` heeds the first, and no core need be pinned for it."""
        own = ROOT_ENV if self._user == "root" else {}
        return {"OMP_NUM_THREADS": str(visible_cpus(self._limits)), **own, **self._network.env}

    # --- files --------------------------------------------------------------------------

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        await self.check_alive()
        return self._files.read(path, max_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await self.check_alive()
        self._files.write(path, data, mode)

    async def upload(self, files: Mapping[str, bytes], *, directory: str) -> None:
        await self.check_alive()
        self._files.upload(files, directory)

    async def download(
        self, directory: str, *, max_bytes: int = 64 << 20, max_files: int = 4096
    ) -> dict[str, bytes]:
        await self.check_alive()
        return self._files.download(directory, max_bytes, max_files)

    async def list(self, path: str) -> list[FileStat]:
        await self.check_alive()
        return self._files.list(path)

    async def stat(self, path: str) -> FileStat:
        await self.check_alive()
        return self._files.stat(path)

    async def remove(self, path: str) -> None:
        await self.check_alive()
        self._files.remove(path)

    # --- network ------------------------------------------------------------------------

    async def relay(self, port: int, socket_path: str) -> None:
        await self.check_alive()
        await self._network.relay(self._process.init_pidfd, port, socket_path)

    def network_log(self) -> tuple[NetworkAttempt, ...]:
        return self._network.log()

    async def snapshot(self) -> str:
        name = await self.save(keep=True)
        self._host.snapshots.release(name)
        return name

    async def save(self, *, keep: bool) -> str:
        """As `snapshot`; the snapshot is held once, and goes if not kept after `release`."""
        async with self._saving:
            if self._end is not None:
                await asyncio.shield(self._lost)
            if self._process.layer_fd < 0:
                await self.check_alive()
            content = BoxContent(
                os.dup(self._process.layer_fd),
                self._image,
                self._tree.provided,
                self._limits,
                self.host_uids,
                self._cgroup,
            )
            return await content.save(self._host.snapshots, self.owner, keep=keep)

    # --- the end ------------------------------------------------------------------------

    async def check_alive(self) -> None:
        """Raises `SandboxLost` once the box is gone or going."""
        if self._end is not None:
            lost = await asyncio.shield(self._lost)
            raise SandboxLost(str(lost), host_evidence=lost.host_evidence)

    def destroy(self, why: str, *, host_evidence: str = "") -> None:
        """Kill all of the box now; the first `why` goes into the errors that follow."""
        self._why = self._why or why
        self._host_evidence = self._host_evidence or host_evidence
        self._process.kill()
        self._on_end(None)

    def vanished(self) -> None:
        """PID 1 is gone; the end of its socket says so too."""
        self._on_end(None)

    def _on_end(self, why: str | None) -> None:
        if why is not None:
            self._why = self._why or why
            self._process.kill()
        if self._end is None:
            self._end = self._loop.create_task(self._finish())

    async def close(self) -> None:
        self.destroy("it was closed")
        assert self._end is not None
        await asyncio.shield(self._end)
        self._process.close_files()
        self._release_image()

    async def _finish(self) -> None:
        """Wait for the processes, tell the commands, give everything back. Never raises."""
        if self._deadline is not None:
            self._deadline.cancel()
        wait_status = None
        try:
            await self._network.close()
            wait_status = await self._process.wait()
        finally:  # who waits is told also when the event loop ends and cancels this
            self._tell_commands(wait_status)
            self._process.close()
        self.leaked = not await self._remove_cgroup()
        if self.leaked:
            self._table.leaked(self._id)
        else:
            self._table.ended(self._id)
            self._host.ids(self._user).give_back(self._uid)

    def _tell_commands(self, wait_status: int | None) -> None:
        out_of_memory = self._cgroup.oom_kills() > 0
        lost = self._explain(wait_status, out_of_memory)
        self._lost.set_result(lost)
        self._commands.box_ended(lost, out_of_memory=out_of_memory)

    def _explain(self, wait_status: int | None, out_of_memory: bool) -> SandboxLost:
        if out_of_memory:
            return SandboxLost(f"box {self._id} is gone: it ran out of memory")
        if self._why:
            return SandboxLost(
                f"box {self._id} is gone: {self._why}", host_evidence=self._host_evidence
            )
        killed = self._cgroup.host_oom_kills()
        evidence = HOST_OUT_OF_MEMORY if killed else outside_evidence(wait_status)
        return SandboxLost(
            f"box {self._id} vanished: {evidence or 'its PID 1 ended'}", host_evidence=evidence
        )

    async def _remove_cgroup(self) -> bool:
        deadline_s = self._loop.time() + _REMOVE_TIMEOUT_S
        wait_s = 0.001
        while not self._cgroup.remove():
            if self._loop.time() > deadline_s:
                return False
            self._cgroup.kill()  # e.g. bubblewrap's child, when its parent died too early
            await asyncio.sleep(wait_s)
            wait_s = min(0.1, wait_s * 2)
        return True
