/* trialyard-box: the native half of a sandbox, in three roles.
 *
 *   launch  runs as root on the host: puts itself under the box's limits, builds the
 *           box's file tree in a mount namespace of its own, becomes the box's
 *           unprivileged uid and turns into bubblewrap (launch.c).
 *   init    is PID 1 inside: starts, reaps and kills commands (init.c).
 *   keeper  waits for the supervisor's death and tidies up after it (keeper.c).
 *
 * Both are one static binary, because the box needs no library to hold it and starting it
 * costs a fraction of a dynamically linked one.
 */
#include <stdio.h>
#include <string.h>

#include "launch.h"
#include "protocol.h"

int launch_main(int argc, char **argv);
int init_main(void);
int keeper_main(int argc, char **argv);

int main(int argc, char **argv) {
    if (argc >= 2 && strcmp(argv[1], "init") == 0) {
        if (argc == 3 && strcmp(argv[2], "moved") == 0) wait_to_be_moved();
        return init_main();
    }
    if (argc >= 2 && strcmp(argv[1], "launch") == 0) return launch_main(argc - 2, argv + 2);
    if (argc >= 2 && strcmp(argv[1], "keeper") == 0) return keeper_main(argc - 2, argv + 2);
    if (argc == 2 && strcmp(argv[1], "version") == 0) return printf("%d\n", PROTOCOL_VERSION) < 0;
    fprintf(stderr, "usage: trialyard-box launch OPTIONS -- PROGRAM ... | init |\n"
                    "       keeper DIRECTORY GROUP... | version\n");
    return 2;
}
