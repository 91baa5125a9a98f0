"""System calls that a box may make. Whatever is not named here is refused.

Kept as data so that a reviewer can read it: everything an ordinary program needs, nothing
that mounts, loads, traces strangers, opens by handle, makes namespaces, sets clocks, or
reaches rarely used kernel surface (io_uring, bpf, userfaultfd, keyrings, perf, NUMA moves).
"""

PROCESSES = """
    arch_prctl brk capget capset execve execveat exit exit_group fork
    futex futex_time64 futex_waitv get_robust_list get_thread_area getcpu getegid geteuid getgid
    getgroups getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage
    getsid gettid getuid kill membarrier pidfd_open pidfd_send_signal prctl prlimit64 ptrace
    restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
    rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
    sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler
    sched_yield seccomp set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid
    setgroups setitimer getitimer setpgid setpriority setregid setresgid setresuid setreuid
    setrlimit setsid setuid sigaltstack tgkill times tkill umask uname vfork wait4 waitid alarm
    pause ioprio_get ioprio_set sysinfo landlock_create_ruleset landlock_add_rule
    landlock_restrict_self
"""

MEMORY = """
    madvise memfd_create mincore mlock mlock2 mlockall mmap mprotect mremap msync munlock
    munlockall munmap pkey_alloc pkey_free pkey_mprotect get_mempolicy remap_file_pages
"""

FILES = """
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat
    faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchown fchownat fcntl fdatasync
    fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat
    getcwd getdents getdents64 getxattr inotify_add_watch inotify_init inotify_init1
    inotify_rm_watch lchown lgetxattr link linkat listxattr llistxattr lremovexattr lseek
    lsetxattr lstat mkdir mkdirat mknod mknodat newfstatat open openat openat2 pread64 preadv
    preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr rename
    renameat renameat2 rmdir sendfile setxattr splice stat statfs statx symlink symlinkat sync
    sync_file_range syncfs tee truncate unlink unlinkat utime utimensat utimes write writev
"""

WAITING_AND_TIME = """
    clock_getres clock_gettime clock_nanosleep epoll_create epoll_create1 epoll_ctl
    epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 getrandom
    gettimeofday io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit nanosleep
    pipe pipe2 poll ppoll pselect6 select signalfd signalfd4 time timer_create timer_delete
    timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime
"""

MESSAGES = """
    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg
    recvmsg sendmmsg sendmsg sendto setsockopt shutdown socketpair
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv
    msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget
"""

ALLOWED: tuple[str, ...] = tuple(
    name
    for group in (PROCESSES, MEMORY, FILES, WAITING_AND_TIME, MESSAGES)
    for name in group.split()
)

NAMES_BY_NUMBER = {451: "cachestat", 452: "fchmodat2"}
ALLOWED_BY_NUMBER: tuple[int, ...] = tuple(NAMES_BY_NUMBER)
"""Newer than many libseccomp; one number on every architecture."""

_REFUSED = """
    acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init
    finit_module fsconfig fsmount fsopen fspick init_module ioperm iopl kcmp kexec_file_load
    kexec_load keyctl lookup_dcookie mbind migrate_pages modify_ldt mount mount_setattr
    move_mount move_pages name_to_handle_at nfsservctl open_by_handle_at open_tree
    perf_event_open personality pidfd_getfd pivot_root process_madvise process_vm_readv
    process_vm_writev quotactl quotactl_fd reboot request_key set_mempolicy
    setdomainname sethostname setns settimeofday stime swapoff swapon syslog umount umount2
    unshare uselib userfaultfd ustat vhangup vmsplice
"""

REFUSED: tuple[str, ...] = tuple(_REFUSED.split())
"""Refused with EPERM, as programs expect; all the rest with ENOSYS, so that they fall back."""
