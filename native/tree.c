/* The file tree of a box: one tmpfs with both quotas, and what is mounted on it.
 *
 * All of it is made by root in a mount namespace of this box alone. PATHs are resolved with the
 * tree as the root of all links, so that what an image or a snapshot holds cannot lead a step
 * out of it. What is made belongs to `tree_owner`: the host's root, or root inside the box where
 * the box has one, so that it can do in its tree as root does.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launch.h"

/* What an image layer says about renames and partial copies is not obeyed. */
#define OVERLAY_OPTIONS "redirect_dir=nofollow,metacopy=off,index=off"

enum { TTY_GROUP = 5, FIRST_OWN_FD = 64 /* above those that others inherit */ };
static const uid_t STRANGER = 4294967294;

static char disk[4096], tree[4104];
static int tree_fd = -1, map_fd = -1;
static uid_t tree_owner;

const char *tree_disk(void) { return disk; }

void tree_belongs_to(uid_t owner) { tree_owner = owner; }

int tree_map(void) { return map_fd; }

static void give_away(int directory, const char *name) {
    if (tree_owner && fchownat(directory, name, tree_owner, tree_owner, AT_SYMLINK_NOFOLLOW) < 0)
        fail("chown %s", name);
}

/* A path of the tree as root of all links, so that what an image or a snapshot holds cannot
 * lead a step out of the tree. */
static int open_in_tree(const char *path, unsigned long long flags) {
    struct open_how how = {.flags = flags | O_CLOEXEC,
                           .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    return syscall(SYS_openat2, tree_fd, path, &how, sizeof how);
}

/* For calls that take no descriptor. */
static const char *path_of(int fd) {
    static char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

/* Opens one directory of the tree, made where missing; close it. */
static int make_directories(const char *path) {
    char copy[4096];
    int parent = open_in_tree(".", O_PATH | O_DIRECTORY);
    if (parent < 0 || snprintf(copy, sizeof copy, "%s/", path) >= (int)sizeof copy)
        fail("open tree for %s", path);
    for (char *name = copy, *slash; (slash = strchr(name, '/')); name = slash + 1) {
        *slash = 0;
        int fd = open_in_tree(copy, O_PATH | O_DIRECTORY);
        if (fd < 0 && errno == ENOENT && mkdirat(parent, name, 0755) == 0) {
            give_away(parent, name);
            fd = open_in_tree(copy, O_PATH | O_DIRECTORY);
        }
        if (fd < 0) fail("mkdir %s", copy);
        close(parent);
        parent = fd;
        *slash = '/';
    }
    return parent;
}

/* Opens the directory that holds `path`, made where missing; sets the last name. */
static int make_parent(const char *path, const char **name) {
    char parent[4096];
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    return make_directories(parent);
}

void make_directory(const char *path, mode_t mode) {
    int fd = make_directories(path);
    if (chmod(path_of(fd), mode) < 0) fail("chmod %s", path);
    close(fd);
}

void make_file(const char *path, const char *text) {
    const char *name;
    int parent = make_parent(path, &name);
    int fd = openat(parent, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) fail("write %s", path);
    give_away(parent, name);
    close(fd);
    close(parent);
}

void make_link(const char *target, const char *path) {
    const char *name;
    int parent = make_parent(path, &name);
    if (symlinkat(target, parent, name) == 0)
        give_away(parent, name);
    else if (errno != EEXIST)
        fail("symlink %s", path);
    close(parent);
}

static void open_tree_fd(void) {
    if (tree_fd >= 0) close(tree_fd);
    tree_fd = open(tree, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (tree_fd < 0) fail("open %s", tree);
}

void mount_tmpfs(const char *where, const char *bytes, const char *inodes) {
    char options[128];
    if (unshare(CLONE_NEWNS) < 0) fail("unshare mount namespace");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) fail("make mounts private");
    snprintf(options, sizeof options, "mode=0755,size=%llu,nr_inodes=%llu", number(bytes),
             number(inodes));
    if (mount("trialyard", where, "tmpfs", MS_NOSUID | MS_NODEV, options) < 0)
        fail("mount tmpfs on %s", where);
    snprintf(disk, sizeof disk, "%s", where);
    snprintf(tree, sizeof tree, "%s/root", where);
    if (mkdir(tree, 0755) < 0) fail("mkdir %s", tree);
    give_away(AT_FDCWD, tree);
    open_tree_fd();
}

/* Attaches a mount on a new directory DISK/NAME. */
static void attach_below_disk(int mount_fd, const char *name) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", disk, name);
    if (mkdir(path, 0755) < 0) fail("mkdir %s", path);
    int place = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (place < 0) fail("open %s", path);
    attach_mount(mount_fd, place);
    close(place);
}

/* Shows every layer through the map, on DISK/N; returns the names, from DISK. */
static const char *map_layers(const char *lowers) {
    static char names[64 * 1024];
    char copy[64 * 1024], name[16];
    size_t length = 0;
    int number = 0;
    if (snprintf(copy, sizeof copy, "%s", lowers) >= (int)sizeof copy) {
        errno = ENAMETOOLONG;
        fail("image layers");
    }
    for (char *layer = strtok(copy, ":"); layer; layer = strtok(NULL, ":"), number++) {
        int fd = clone_mount(layer, map_fd, MS_RDONLY | MS_NOSUID | MS_NODEV);
        if (fd < 0) fail("map the owners of image layer %s", layer);
        snprintf(name, sizeof name, "%d", number);
        attach_below_disk(fd, name);
        length += snprintf(names + length, sizeof names - length, number ? ":%s" : "%s", name);
    }
    if (chdir(disk) < 0) fail("chdir %s", disk);
    return names;
}

/* The overlay holds its layers itself. */
static void hide_layers(void) {
    char name[16];
    struct stat status;
    for (int number = 0;; number++) {
        snprintf(name, sizeof name, "%d", number);
        if (stat(name, &status) < 0) break;
        if (umount2(name, MNT_DETACH) < 0 || rmdir(name) < 0) fail("hide layer %s", name);
    }
    if (chdir("/") < 0) fail("chdir");
}

void mount_overlay(const char *lowers) {
    static char options[64 * 1024], upper[4200], scratch[4200];
    snprintf(upper, sizeof upper, "%s/upper", disk);
    snprintf(scratch, sizeof scratch, "%s/scratch", disk);
    if (mkdir(upper, 0755) < 0 || mkdir(scratch, 0700) < 0) fail("mkdir below %s", disk);
    give_away(AT_FDCWD, upper);
    if (map_fd >= 0) lowers = map_layers(lowers);
    if (snprintf(options, sizeof options, OVERLAY_OPTIONS ",lowerdir=%s,upperdir=%s,workdir=%s",
                 lowers, upper, scratch) >= (int)sizeof options) {
        errno = ENAMETOOLONG;
        fail("image layers");
    }
    if (mount("trialyard", tree, "overlay", MS_NOSUID | MS_NODEV, options) < 0)
        fail("mount overlay of %s", lowers);
    if (map_fd >= 0) hide_layers();
    open_tree_fd();
}

static void make_mount_point(const char *source, const char *path) {
    struct stat status;
    if (stat(source, &status) < 0) fail("stat %s", source);
    if (S_ISDIR(status.st_mode)) {
        close(make_directories(path));
        return;
    }
    const char *name;
    int parent = make_parent(path, &name);
    int fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 && errno != EEXIST) fail("create %s", path);
    if (fd >= 0) {
        give_away(parent, name);
        close(fd);
    }
    close(parent);
}

static void bind_plain(const char *source, const char *path, unsigned long flags) {
    make_mount_point(source, path);
    int fd = open_in_tree(path, O_PATH);
    if (fd < 0 || mount(source, path_of(fd), NULL, MS_BIND, NULL) < 0)
        fail("bind %s on %s", source, path);
    close(fd);
    fd = open_in_tree(path, O_PATH); /* now the root of the new mount */
    if (fd < 0 || mount(NULL, path_of(fd), NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | flags, NULL) < 0)
        fail("remount %s", path);
    close(fd);
}

/* Kernels and file systems that cannot map owners show them as they are. */
void bind_read_only(const char *source, const char *path, unsigned long flags) {
    int fd = map_fd < 0 ? -1 : clone_mount(source, map_fd, MS_RDONLY | MS_NOSUID | flags);
    if (fd < 0) return bind_plain(source, path, MS_RDONLY | flags);
    make_mount_point(source, path);
    int target = open_in_tree(path, O_PATH);
    if (target < 0) fail("open %s", path);
    attach_mount(fd, target);
    close(target);
}

/* Mounts SOURCE, an idmapped mount on DISK/source, as one layer over an empty one, on the tree's
 * directory `target`. An overlay checks every access twice, and once with the rights of who mounted
 * it: here a stranger without rights over files. */
static int overlay_as_stranger(int target) {
    if (chdir(disk) < 0) fail("chdir %s", disk);
    if (mkdir("nothing", 0755) < 0 && errno != EEXIST) fail("mkdir below %s", disk);
    if (setgroups(0, NULL) < 0) fail("setgroups");
    setfsgid(STRANGER);
    setfsuid(STRANGER); /* takes the capabilities over files away too */
    int done = mount("trialyard", path_of(target), "overlay", MS_RDONLY | MS_NOSUID | MS_NODEV,
                     OVERLAY_OPTIONS ",lowerdir=source:nothing");
    setfsuid(0);
    setfsgid(0);
    return done;
}

/* Owners through the map, but only what everybody may read: root inside is not to read what
 * only the host's root may, though it is seen to own it. Falls back to owners as they are. */
void show_public(const char *source, const char *path) {
    struct stat status;
    int layer = -1;
    if (map_fd >= 0 && stat(source, &status) == 0 && S_ISDIR(status.st_mode))
        layer = clone_mount(source, map_fd, MS_RDONLY | MS_NOSUID | MS_NODEV);
    if (layer < 0) return bind_plain(source, path, MS_RDONLY | MS_NODEV);
    attach_below_disk(layer, "source");
    make_mount_point(source, path);
    int target = open_in_tree(path, O_PATH | O_DIRECTORY);
    if (target < 0) fail("open %s", path);
    int done = overlay_as_stranger(target);
    if (umount2("source", MNT_DETACH) < 0 || rmdir("source") < 0 || chdir("/") < 0)
        fail("hide %s", source);
    close(target);
    if (done < 0) bind_plain(source, path, MS_RDONLY | MS_NODEV);
}

void bind_shm(const char *path, uid_t owner) {
    char shm[4200];
    snprintf(shm, sizeof shm, "%s/shm", disk);
    if (mkdir(shm, 01777) < 0 || chown(shm, owner, owner) < 0) fail("mkdir %s", shm);
    bind_plain(shm, path, MS_NODEV);
}

/* Where the box's root inside may have a group for terminals, they are of that group. */
void mount_devpts(const char *path) {
    char options[128] = "newinstance,ptmxmode=0666,mode=0620,max=64";
    if (tree_owner)
        snprintf(options, sizeof options, "newinstance,ptmxmode=0666,mode=0620,max=64,gid=%u",
                 tree_owner + TTY_GROUP);
    int fd = open_in_tree(path, O_PATH | O_DIRECTORY);
    if (fd < 0 || mount("devpts", path_of(fd), "devpts", MS_NOSUID | MS_NOEXEC, options) < 0)
        fail("mount devpts");
    close(fd);
}

void set_map(const char *map, uid_t first) {
    if (map_fd >= 0) close(map_fd);
    map_fd = -1;
    if (!strcmp(map, "-")) return;
    int fd = make_user_namespace(map, first);
    map_fd = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_OWN_FD);
    if (map_fd < 0) fail("fcntl");
    close(fd);
}

void own_directory(const char *path, mode_t mode, uid_t owner) {
    int fd = make_directories(path);
    if (chown(path_of(fd), owner, owner) < 0) fail("chown %s", path);
    if (chmod(path_of(fd), mode) < 0) fail("chmod %s", path);
    close(fd);
}

void enter_tree(void) {
    if (mount(tree, tree, NULL, MS_BIND | MS_REC, NULL) < 0) fail("bind %s", tree);
    if (chdir(tree) < 0 || syscall(SYS_pivot_root, ".", ".") < 0) fail("pivot_root %s", tree);
    if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0) fail("leave the old root");
}

