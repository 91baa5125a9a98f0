/* What the parts of the launcher share. */
#ifndef TRIALYARD_LAUNCH_H
#define TRIALYARD_LAUNCH_H

#include <sys/types.h>

/* Says what failed and why (errno), and ends the launcher. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* A user namespace with this map of uids and gids, owned by uid `first`; its descriptor.
 * MAP is INSIDE:HOST:COUNT,... where a HOST that begins with '+' counts from `first`. */
int make_user_namespace(const char *map, uid_t first);

/* A mount of `source` alone (nothing mounted below it), attached nowhere, whose owners are
 * seen through `map_fd`. Flags are MS_RDONLY, MS_NOSUID, MS_NODEV and MS_NOEXEC, which are
 * MOUNT_ATTR_* too. Returns its descriptor; -1 where kernel or file system cannot do it. */
int clone_mount(const char *source, int map_fd, unsigned long flags);

/* Attaches a mount of clone_mount; closes its descriptor. */
void attach_mount(int mount_fd, int target_fd);

/* A socket on which PID 1 of an OCI runtime's box says that it runs, and learns that it counts. */
enum { MOVE_FD = 4 };
void wait_to_be_moved(void);

/* The steps that build the tree (tree.c); what each does stands in launch.c. */
void mount_tmpfs(const char *where, const char *bytes, const char *inodes);
void set_map(const char *map, uid_t first);
void mount_overlay(const char *lowers);
void make_directory(const char *path, mode_t mode);
void own_directory(const char *path, mode_t mode, uid_t owner);
void make_file(const char *path, const char *text);
void make_link(const char *target, const char *path);
void bind_read_only(const char *source, const char *path, unsigned long flags);
void show_public(const char *source, const char *path);
void bind_shm(const char *path, uid_t owner);
void mount_devpts(const char *path);
void enter_tree(void);

/* From here on, what is made in the tree belongs to this uid. */
void tree_belongs_to(uid_t owner);
/* The user namespace of the latest map; -1 without one. */
int tree_map(void);
/* Where the tmpfs is mounted; DISK/root is the tree. */
const char *tree_disk(void);

unsigned long long number(const char *text);

/* A box that an OCI runtime makes (oci.c). */
struct oci_box {
    const char *disk;        /* where the box's tmpfs is mounted; DISK/root is the tree */
    uid_t owner;             /* who runs the runtime: root of the box's user namespace */
    const char *map;         /* of that user namespace, as for make_user_namespace */
    const char *config;      /* text of the bundle's config.json */
    int groups[8];           /* cgroup.procs of the groups that PID 1 belongs to */
    int num_groups;
    char **runtime;          /* the runtime's argv as far as it is the same for all commands */
    char **environment;
};

/* Starts the box, waits until it ends, and returns the exit status of the launcher. */
int supervise_oci(const struct oci_box *box);

#endif
