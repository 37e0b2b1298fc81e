// GekkoFS' user library behind the plain C functions that SharedFSBackend calls (client_library).
//
// Built by whoever runs GekkoFS, against the headers and library of that installation:
//
//     g++ -std=c++17 -O2 -fPIC -shared -I$GKFS/include -o libsharedfs_client.so
//         sharedfs_client.cpp -L$GKFS/lib -Wl,-rpath,$GKFS/lib -lgkfs_user_lib
//
// Each function returns -1 and sets errno on failure, as the system call it is named after. Nothing
// is preloaded: a process that opens this library forks, spawns and locks files as ever.
#include <gkfs/user_functions.hpp>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>

using namespace gkfs::syscall;

extern "C" {

int sfb_init() { return gkfs_init(); }

int sfb_open(const char *path, int flags, unsigned mode) {
    // The library knows no symbolic links and keeps descriptors of its own: these say nothing.
    return gkfs_open(path, static_cast<mode_t>(mode), flags & ~(O_NOFOLLOW | O_CLOEXEC));
}

int sfb_close(int fd) { return gkfs_close(static_cast<unsigned>(fd)); }

ssize_t sfb_pread(int fd, void *to, size_t bytes, int64_t offset) {
    return gkfs_pread(fd, to, bytes, offset);
}

ssize_t sfb_pwrite(int fd, const void *from, size_t bytes, int64_t offset) {
    return gkfs_pwrite(fd, from, bytes, offset);
}

int sfb_unlink(const char *path) { return gkfs_remove(path); }

int sfb_mkdir(const char *path, unsigned mode) {
    return gkfs_create(path, static_cast<mode_t>(mode) | S_IFDIR);
}

// Size of a file; is_directory says what the path is. -1 where there is nothing.
int64_t sfb_size(const char *path, int *is_directory) {
    struct stat found;
    std::memset(&found, 0, sizeof found);
    if (gkfs_stat(path, &found))
        return -1;
    *is_directory = S_ISDIR(found.st_mode);
    return found.st_size;
}

// Base names, each ended by a zero byte, as far as there is room; the bytes that all of them need.
ssize_t sfb_list(const char *path, char *names, size_t room) {
    struct stat found;
    if (gkfs_stat(path, &found))
        return -1;
    if (!S_ISDIR(found.st_mode)) {
        errno = ENOTDIR;
        return -1;
    }
    size_t needed = 0;
    for (const std::string &name : gkfs_get_file_list(path)) {
        if (needed + name.size() + 1 <= room)
            std::memcpy(names + needed, name.c_str(), name.size() + 1);
        needed += name.size() + 1;
    }
    return static_cast<ssize_t>(needed);
}
}
